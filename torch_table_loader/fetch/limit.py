class InFlightLimit:
    value = 16

    def begun(self, now):
        pass

    def ended(self, n, began, now):
        pass

    def failed(self, now):
        pass


_L = InFlightLimit()


def limit_of(place):
    return _L

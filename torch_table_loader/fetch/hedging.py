class HedgePolicy:
    def late_after(self, n):
        return None

    def allows(self):
        return False

    def hedged(self):
        pass

    def ended(self, n, s):
        pass

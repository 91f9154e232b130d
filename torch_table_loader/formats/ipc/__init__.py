"""Arrow files: IPC and Feather."""

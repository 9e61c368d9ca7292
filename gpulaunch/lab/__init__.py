"""What no launch needs: measuring, scanning source code, simulating."""

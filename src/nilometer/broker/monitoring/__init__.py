"""What a broker shows of itself over HTTP: metrics, whether it is alive, and whether it is ready."""

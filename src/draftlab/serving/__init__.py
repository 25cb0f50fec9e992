"""What a draft does to a server's load: simulated before deployment, watched after it. Needs neither torch nor transformers."""

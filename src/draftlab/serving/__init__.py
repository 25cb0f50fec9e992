"""How a draft affects a server under load: simulated before deployment, monitored after it. Needs neither torch nor transformers."""

"""The page at `/`: plain ES modules, style sheets and three vendored libraries, served as they lie here."""

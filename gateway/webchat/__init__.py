"""The page at `/`: plain ES modules, style sheets and two vendored libraries, served as they lie here."""

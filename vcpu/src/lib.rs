//! Software vCPUs that really cache translations, and their guests, for slat

//! DigitalOcean Block Storage as a CSI driver: takes over from `dobs.csi.digitalocean.com`.

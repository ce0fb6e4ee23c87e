module wharf.dev/test/digitalocean

go 1.25.0

// The versions that csi-digitalocean 4.16.0 was made with.
require (
	github.com/digitalocean/go-metadata v0.0.0-20250129100319-e3650a3df44b
	github.com/digitalocean/godo v1.167.0
)

require (
	github.com/google/go-querystring v1.1.0 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-retryablehttp v0.7.7 // indirect
	golang.org/x/oauth2 v0.27.0 // indirect
	golang.org/x/time v0.6.0 // indirect
)

# The project's commands. Each says what it is for; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help build up down kubectl demo check test test-up test-cargo test-sanity test-clients test-vm test-nfs test-cluster differential \
  test-all fuzz mutants bench fmt clippy deny docs publish-check tools

help: ## list the commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 15

build: ## build the release binary: target/release/wharf
	cargo build --release --package wharf

up: ## run Kubernetes storage on this machine, in the background; WHARF_DATA_DIR is its directory
	@hack/tools.sh run
	@hack/up.sh

down: ## stop it: pods end, volumes are unmounted, data stays
	@hack/up.sh down

kubectl: ## build a kubectl, and say where it is
	@test/cluster/cluster.sh kubectl

demo: tools ## take a volume through its whole life on a throwaway pool, and time each step
	hack/demo.sh

check: ## format, lints and the unit tests: no root, no network, under two minutes once compiled
	@hack/check.sh

test: tools ## everything that must pass: crates, csi-sanity, others' clients, virtual machine, lives on a real API server
	hack/test.sh cargo sanity clients vm nfs up kubectl slice leaks

test-cargo: tools ## the crates' own tests, with a real kernel
	hack/test.sh cargo

test-sanity: tools ## csi-sanity against our drivers, the SDK's example and the driver template
	hack/test.sh sanity

test-clients: tools ## the clients of others against our fakes
	hack/test.sh clients

test-up: tools ## the tour in docs/getting-started.md, word for word
	hack/test.sh up

test-vm: tools ## what needs a kernel of its own
	hack/test.sh vm

test-nfs: tools ## the NFS driver on a kernel NFS server, in a virtual machine
	hack/test.sh nfs

test-cluster: tools ## on a real Kubernetes of two nodes, which is built once (10 minutes)
	hack/test.sh cluster

differential: tools ## upstream's sidecars and ours, scenario by scenario, on a real API server
	hack/test.sh differential

test-all: tools ## `test`, and what takes long
	hack/test.sh cargo sanity clients vm nfs nfs-faults up kubectl differential three-ways cluster soak dist fuzz

fuzz: ## fuzz every parser of untrusted or persisted input, one minute each; FUZZ_SECONDS changes that
	hack/fuzz.sh

mutants: ## change the rules one by one and see whether their tests notice (hours)
	hack/mutants.sh

bench: tools ## measure, as ratios within one run: the driver, the API server, one machine, then the sidecars (an hour and a half)
	bench/run.sh
	bench/apiserver.sh
	bench/up.sh
	bench/nfs.sh
	bench/sidecar.sh

fmt: ## format the code
	cargo fmt --all

clippy: ## lint the code
	cargo clippy --workspace --all-targets -- -D warnings

docs: ## build the book into target/book; broken links fail
	hack/docs.sh

publish-check: ## package the SDK's crates as for crates.io and build the packages, without uploading them
	cargo publish --dry-run --allow-dirty -p wharf-csi -p wharf-linux -p wharf-driver

deny: ## check licences, duplicate versions and sources of the dependencies; advisories=yes checks advisories too (network)
	hack/deny.sh $(if $(advisories),advisories)

tools: ## install what the commands need and this machine lacks
	@hack/tools.sh

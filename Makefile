# The project's commands. `make` without a target lists them with their descriptions.
.DEFAULT_GOAL := help
.PHONY: help build up down kubectl demo check test test-up test-cargo test-sanity test-clients test-vm test-nfs test-cluster differential \
  test-all fuzz mutants bench fmt clippy deny docs publish-check tools

help: ## list the commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 15

build: ## build the release binary: target/release/wharf
	cargo build --release --package wharf

up: ## run Kubernetes storage on this machine, in the background; WHARF_DATA_DIR sets its data directory
	@hack/tools.sh run
	@hack/up.sh

down: ## stop wharf up: stops pods and unmounts volumes; data stays
	@hack/up.sh down

kubectl: ## build a kubectl and print its path
	@test/cluster/cluster.sh kubectl

demo: tools ## run the lifecycle of a volume on a temporary pool and print the time of each step
	hack/demo.sh

check: ## check the format, run lints and unit tests: no root, no network, under two minutes once compiled
	@hack/check.sh

test: tools ## run all required tests: crates, csi-sanity, DigitalOcean's clients, virtual machine, NFS, wharf up, real API server
	hack/test.sh cargo sanity clients vm nfs up kubectl slice leaks

test-cargo: tools ## run the tests of the crates, on the real kernel
	hack/test.sh cargo

test-sanity: tools ## run csi-sanity against our drivers, the SDK's example and the driver template
	hack/test.sh sanity

test-clients: tools ## run DigitalOcean's own clients against our fake of its API
	hack/test.sh clients

test-up: tools ## run the tour in docs/getting-started.md, word for word
	hack/test.sh up

test-vm: tools ## run the tests that need a virtual machine
	hack/test.sh vm

test-nfs: tools ## run the NFS driver on a kernel NFS server, in a virtual machine
	hack/test.sh nfs

test-cluster: tools ## run the tests on a real Kubernetes with two nodes; the first run builds it (10 minutes)
	hack/test.sh cluster

differential: tools ## run upstream's sidecars and ours through the same scenarios and compare the results
	hack/test.sh differential

test-all: tools ## run `test`, the cluster tests and all slow tests
	hack/test.sh cargo sanity clients vm nfs nfs-faults nfs-cluster up kubectl differential three-ways cluster soak dist fuzz

fuzz: ## fuzz the parsers listed in fuzz/fuzz_targets, one minute each; FUZZ_SECONDS changes that
	hack/fuzz.sh

mutants: ## run mutation tests on the rules (hours)
	hack/mutants.sh

bench: tools ## run the benchmarks: driver, API server, one machine, sidecars (an hour and a half)
	bench/run.sh
	bench/apiserver.sh
	bench/up.sh
	bench/nfs.sh
	bench/sidecar.sh

fmt: ## format the code
	cargo fmt --all

clippy: ## lint the code
	cargo clippy --workspace --all-targets -- -D warnings

docs: ## build the book into target/book; fails on broken links
	hack/docs.sh

publish-check: ## package the SDK's crates as for crates.io and build the packages, without uploading them
	cargo publish --dry-run --allow-dirty -p wharf-csi -p wharf-linux -p wharf-driver

deny: ## check licences, duplicate versions and sources of the dependencies; advisories=yes checks advisories too (network)
	hack/deny.sh $(if $(advisories),advisories)

tools: ## install missing programs that the other commands need
	@hack/tools.sh

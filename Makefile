# nodeagent: everything that a newcomer or a maintainer does is one of these targets.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X github.com/nodeagent/nodeagent/internal/agent.Version=$(VERSION)
# Without this tag grpc brings text/template, which calls methods by name: the linker would have to keep every method of every
# type, a sixth of the program and of its memory.
TAGS    := grpcnotrace
LAB_DIR ?= /var/lib/nodeagent-lab
LABCTL  := go run ./test/lab/labctl --dir $(LAB_DIR)
# The tests that start a containerd of their own, the first in the PATH.
CONTAINERD2      = $(CURDIR)/.cache/containerd-$$(go list -C test/containerd -m -f '{{.Version}}' github.com/containerd/containerd/v2)
CONTAINERD_TESTS := RealContainerd|AgainstContainerd|ShimLeaksReal|TestCRI$$|StopSandboxCNIFails|ReleaseSandbox

.PHONY: build
build: ## the agent: one static binary, ./nodeagent
	CGO_ENABLED=0 go build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o nodeagent ./cmd/nodeagent

.PHONY: demo
demo: ## a real node fails, the agent finds, tells and repairs; about 15 minutes the first time, 2 after
	go run ./test/demo --dir $(LAB_DIR)

.PHONY: test
test: packages vet unit test-npd test-chart e2e e2e-daemonset test-daemonset ## all tests but those of test-long; as root on Debian 12, in about an hour with empty caches

.PHONY: test-long
test-long: packages guest demo ## what takes minutes each: faults in an emulated machine, a kubelet that notices late, the demo
	go test -count=1 -timeout 20m -v -run TestKubeletPLEG ./test/e2e -args -lab -long

.PHONY: packages
packages: ## install the Debian packages that the tests need; as root
	@if [ "$$(id -u)" = 0 ]; then $(LABCTL) packages; else echo "not root: no packages are installed, tests that need root are skipped"; fi

.PHONY: vet
vet:
	gofmt -l cmd internal packaging pkg test | (! grep .)
	go vet ./...

.PHONY: unit
unit: ## tests that need no lab; those that need root are skipped by name without it
	go build -race ./...
	go test -race -shuffle=on -p 1 -timeout 25m ./... # one package at a time: some look at the whole machine, others break it

.PHONY: test-npd
test-npd: ## node-problem-detector's own code beside the agent's, on the same files and lines; a module of its own
	cd test/npd && go vet ./... && go test -count=1 -timeout 10m ./...

.PHONY: e2e
e2e: ## tests on a real one-node cluster, which is brought up and removed
	go test -p 1 -count=1 -timeout 40m -v ./test/lab ./test/e2e -args -lab
	go test -count=1 -v -run TestRealAPIServer ./internal/kube # with the kube-apiserver that the lab has built

.PHONY: e2e-daemonset
e2e-daemonset: ## the same with the agent as the DaemonSet and containerd 2 instead of Debian's 1.6, where a test is of either; about 5 minutes
	go test -p 1 -count=1 -timeout 20m -v ./test/e2e -args -lab -daemonset -containerd 2
	test -x $(CONTAINERD2)/containerd # the lab has built it
	PATH=$(CONTAINERD2):$$PATH go test -p 1 -count=1 -v -run '$(CONTAINERD_TESTS)' ./internal/host ./internal/hand ./pkg/detect ./pkg/remediate

.PHONY: mutants
mutants: ## takes out each guard of the release, one at a time, and demands that a test notices; as root, about an hour
	go run ./test/mutants

.PHONY: guest
guest: ## tests that break the machine they run on, in emulated ones with Debian's kernel: disks, links, file servers, processors, memory, sensors, the kernel itself; suspended, restored, reset
	go test -count=1 -timeout 30m -v ./test/guest -args -guest

.PHONY: test-daemonset
test-daemonset: ## the DaemonSet under the real kubelet: image, manifests, chart, least privilege; about 5 minutes
	go test -count=1 -timeout 20m -v ./test/daemonset -args -lab

.PHONY: lab lab-down
lab: ## bring up a real one-node cluster on this machine, with Debian's containerd
	$(LABCTL) up
lab-down: ## remove it without a trace
	$(LABCTL) down

.PHONY: bench
bench: ## what the agent costs and how fast it is, on the lab; prints a table
	go run ./test/bench --dir $(LAB_DIR)

include packaging/*/Makefile.inc

.PHONY: help
help:
	@grep -E '^[a-z0-9 -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9 -]+):.*## /\1\t/' | column -t -s "$$(printf '\t')"

# nodeagent: everything that a newcomer or a maintainer does is one of these targets.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X github.com/nodeagent/nodeagent/internal/agent.Version=$(VERSION)
# Without this tag grpc brings text/template, which calls methods by name: the linker would have to keep every method of every
# type, a sixth of the program and of its memory.
TAGS    := grpcnotrace
LAB_DIR ?= /var/lib/nodeagent-lab
LABCTL  := go run ./test/lab/labctl --dir $(LAB_DIR)
CONTAINERD2      = $(CURDIR)/.cache/containerd-$$(go list -C test/containerd -m -f '{{.Version}}' github.com/containerd/containerd/v2)
SKIPS   := test/need/run
# Lists the test binaries that ask for something of the machine.
NEED    := {{$$p := .ImportPath}}{{range .Deps}}{{if eq . "github.com/nodeagent/nodeagent/test/need"}}{{$$p}}{{"\n"}}{{end}}{{end}}
# The tests that start a containerd of their own, the first in the PATH.
CONTAINERD_TESTS := RealContainerd|AgainstContainerd|ShimLeaksReal|TestCRI$$|StopSandboxCNIFails|ReleaseSandbox

.PHONY: build
build: ## the agent: one static binary, ./nodeagent
	CGO_ENABLED=0 go build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o nodeagent ./cmd/nodeagent

.PHONY: demo
demo: ## a real node fails, the agent finds, tells and repairs; about 15 minutes the first time, 2 after
	go run ./test/demo --dir $(LAB_DIR)

# One layer at a time: some tests look at the whole machine, others break it.
.NOTPARALLEL:

.PHONY: test
test: packages vet build-ahead unit machine test-rpm test-npd test-chart built-ahead e2e e2e-daemonset test-daemonset ## all layers but those of test-long; as root on Debian 12

.PHONY: test-long
test-long: packages guest demo fuzz ## what takes minutes each: faults in an emulated machine, a kubelet that notices late, the demo, the fuzz targets
	go test -count=1 -timeout 20m -v -run TestKubeletPLEG ./test/e2e -args -lab -long

.PHONY: packages
packages: ## install the Debian packages that the tests need; as root
	@if [ "$$(id -u)" = 0 ]; then $(LABCTL) packages; else echo "not root: no packages are installed, tests that need root are skipped"; fi

.PHONY: vet lint
vet: lint ## gofmt, go vet, golangci-lint
	gofmt -l cmd internal packaging pkg test | (! grep .)
	go vet ./...
lint: ## golangci-lint with .golangci.yml; builds it the first time
	go tool -modfile=test/lint/go.mod golangci-lint run

.PHONY: new-check
new-check: ## a new check that works, to be filled in: ID=disk-glitter DOMAIN=storage
	@go run ./test/newcheck '$(ID)' '$(DOMAIN)'

.PHONY: quick
quick: ## the tests that need nothing of the machine; from Go's cache where nothing has changed
	go test -short $$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...)

.PHONY: unit
unit: ## the same with the race detector, in any order
	$(SKIPS) go test -race -short -shuffle=on -timeout 10m ./...

.PHONY: machine
machine: ## all tests of the packages that need root, programs or the kernel, on this machine; as root
	$(SKIPS) go test -p 1 -shuffle=on -timeout 15m $$(go list -test -f '$(NEED)' ./... | sed -n 's/\.test$$//p' | grep -v /test/rpm)

# What end-to-end tests need takes long to build: it is built beside the layers before them, with the processor time that
# they leave. If that fails, so does the run, and says why.
AHEAD := .cache/build-ahead
.PHONY: build-ahead built-ahead
build-ahead:
	@mkdir -p .cache && echo running >$(AHEAD).status
	@flock $(AHEAD).lock sh -c 'nice -n 19 $(LABCTL) build; echo $$? >$(AHEAD).status' >$(AHEAD).log 2>&1 </dev/null &
built-ahead:
	@echo "waiting for what is built ahead: $(AHEAD).log" && flock $(AHEAD).lock cat $(AHEAD).log
	@test "$$(cat $(AHEAD).status)" = 0

.PHONY: test-npd
test-npd: ## node-problem-detector's own code beside the agent's, on the same files and lines; a module of its own
	cd test/npd && go vet ./... && go test -count=1 -timeout 10m ./...

.PHONY: e2e
e2e: ## tests on a real one-node cluster, which is brought up and removed
	$(SKIPS) go test -p 1 -count=1 -timeout 40m -v ./test/lab ./test/e2e -args -lab
	go test -count=1 -v -run TestRealAPIServer ./internal/kube -args -apiserver # which the lab has built

.PHONY: e2e-daemonset
e2e-daemonset: ## the same with the agent as the DaemonSet and containerd 2 instead of Debian's 1.6, where a test is of either; about 5 minutes
	$(SKIPS) go test -p 1 -count=1 -timeout 20m -v ./test/e2e -args -lab -daemonset -containerd 2
	test -x $(CONTAINERD2)/containerd # the lab has built it
	PATH=$(CONTAINERD2):$$PATH $(SKIPS) go test -p 1 -count=1 -v -run '$(CONTAINERD_TESTS)' ./internal/host/... ./internal/mutate ./pkg/detect/... ./pkg/remediate

.PHONY: fuzz
fuzz: ## every fuzz target for 30 s; an input that fails is kept in testdata/fuzz
	test/fuzz.sh 30s

.PHONY: mutants
mutants: ## takes out each guard of the release, one at a time, and demands that a test notices; as root, about an hour
	go run ./test/mutants

.PHONY: guest
guest: ## tests that break the machine they run on, in emulated ones with Debian's kernel: disks, links, file servers, processors, memory, sensors, the kernel itself; suspended, restored, reset
	$(SKIPS) go test -count=1 -timeout 30m -v ./test/guest -args -guest

.PHONY: test-daemonset
test-daemonset: ## the DaemonSet under the real kubelet: image, manifests, chart, least privilege; about 5 minutes
	$(SKIPS) go test -count=1 -timeout 20m -v ./test/daemonset -args -lab

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
	@grep -hE '^[a-z0-9 -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9 -]+):.*## /\1\t/' | column -t -s "$$(printf '\t')"

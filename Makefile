# nodeagent: everything that a newcomer or a maintainer does is one of these targets.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X github.com/nodeagent/nodeagent/cmd/nodeagent/agent.Version=$(VERSION)
# Without this tag grpc brings text/template, which calls methods by name: the linker would have to keep every method of every
# type, a sixth of the program and of its memory.
TAGS    := grpcnotrace
LAB_DIR ?= /var/lib/nodeagent-lab
LABCTL  := go run ./test/lab/labctl --dir $(LAB_DIR)
# One flavour of build for all layers: what one has compiled the next does not compile again.
export GOFLAGS := $(sort -trimpath -buildvcs=false -tags=$(TAGS) $(shell go env GOFLAGS))
export CGO_ENABLED := 0
# The compiler spends a fifth of its time on its garbage collection. Tests run with the usual one.
COMPILE := GOGC=400
RUN     := -exec 'env -u GOGC'
# Runs a layer, named after its target, and reports its time and the tests that it skipped. A test of a layer of REPEATED that
# fails on a busy machine runs once more at the end of "make test". Findings of go vet are those of "make vet".
SUITE   := go run ./test/suite
# Ends a program that hangs: no test comes near it.
LIMIT   := -timeout 60m
LAYER    = $(COMPILE) $(SUITE) layer $(if $(filter $@,$(REPEATED)),-again) $@
TEST     = $(LAYER) go test -vet=off $(LIMIT)
REPEATED := machine apart test-rpm test-lab test-apiserver test-containerd e2e e2e-daemonset test-daemonset
# Test binaries are built beside the one that has the machine.
ALONE   := -p 5 -exec $(CURDIR)/test/need/alone
# Test binaries that run beside those have nothing of the machine but its processors; with LAB also the kernel's log.
APART   := -exec $(CURDIR)/test/need/apart
LAB      = -exec '$(CURDIR)/test/need/apart --lab=$@'
CONTAINERD2      = $(CURDIR)/.cache/containerd-$$(go list -C test/containerd -m -f '{{.Version}}' github.com/containerd/containerd/v2)
# The tests that start a containerd of their own, the first in the PATH.
CONTAINERD_TESTS := RealContainerd|AgainstContainerd|ShimLeaksReal|TestCRI$$|StopSandboxCNIFails|ReleaseSandbox

.PHONY: build
build: ## the agent: one static binary, ./nodeagent
	CGO_ENABLED=0 go build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o nodeagent ./cmd/nodeagent

.PHONY: build-eventcenter
build-eventcenter: ## the event center: one static binary, ./eventcenter
	go build -trimpath -tags $(TAGS) -ldflags '-s -w -X main.Version=$(VERSION)' -o eventcenter ./cmd/eventcenter

.PHONY: build-tracecenter
build-tracecenter: ## judges each delivery of a pod: one static binary, ./tracecenter
	go build -trimpath -tags $(TAGS) -ldflags '-s -w -X main.Version=$(VERSION)' -o tracecenter ./cmd/tracecenter

.PHONY: demo
demo: ## a real node fails, the agent finds, reports and repairs; about 15 minutes the first time, 2 after
	go run ./test/demo --dir $(LAB_DIR)

# One layer at a time: some tests observe the whole machine, others break it. "make test" alone has six lanes, of which
# one has the machine, and the others nothing but processor time.
ifndef LANES
.NOTPARALLEL:
endif

.PHONY: test lanes lane-build lane-pure lane-release lane-machine lane-e2e lane-daemonset
test: ## all layers but those of test-long, some side by side; as root on Debian 12
	rm -rf .cache/suite && mkdir -p .cache/suite
	NODEAGENT_SUITE=$(CURDIR)/.cache/suite $(MAKE) lanes; status=$$?; \
	NODEAGENT_SUITE=$(CURDIR)/.cache/suite $(SUITE) end && exit $$status
lanes:
	$(MAKE) LANES=6 -j6 lane-build lane-pure lane-release lane-machine lane-e2e lane-daemonset
lane-build:
	nice -n 5 $(MAKE) LANES= test-apiserver test-containerd test-chart test-npd test-new-check
lane-pure:
	nice -n 10 $(MAKE) LANES= --output-sync=target vet race pure
lane-release: packages
	nice -n 5 $(MAKE) LANES=2 -j2 release apart
lane-machine: packages
	$(MAKE) LANES=2 -j2 test-rpm machine
lane-e2e: # the longest, and waits most of the time
	$(MAKE) LANES= e2e
lane-daemonset:
	$(MAKE) LANES= test-daemonset e2e-daemonset test-lab

.PHONY: compiled
compiled: export NODEAGENT_COMPILED := $(CURDIR)/.cache/compiled.jsonl
compiled: RUN_OF := test
compiled: ## which packages "make test" compiles more than once, and why: with an empty build cache; RUN_OF=target for another run
	rm -rf .cache/compiled .cache/compiled.jsonl && mkdir -p .cache/compiled
	go build -o .cache/compiled/suite ./test/suite
	GOCACHE=$(CURDIR)/.cache/compiled GOFLAGS='$(GOFLAGS) "-toolexec=$(CURDIR)/.cache/compiled/suite record $(NODEAGENT_COMPILED)"' \
	  $(MAKE) $(RUN_OF); status=$$?; .cache/compiled/suite compiled $(NODEAGENT_COMPILED) && rm -rf .cache/compiled && exit $$status

# Each part can be run by itself, and reports at its end how long it took.
.PHONY: test-long long-e2e long-rpm long-eventcenter long-power long-fleet long-trace long-hostile long-pods long-soak
test-long: packages guest test-crio test-users demo browser monitoring long-e2e long-rpm long-eventcenter long-power long-fleet long-trace long-hostile long-pods long-soak fuzz ## what takes minutes each: faults in an emulated machine, a kubelet that notices late, the demo, pages in a browser, alerts in Prometheus, the fuzz targets
long-e2e: ## on a real one-node cluster: what takes as long as kubelet takes to notice; the event center's chart
	$(TEST) $(RUN) -count=1 -timeout 30m -parallel 4 -v -run 'TestKubeletPLEG|TestRuntimeLatency|TestNoRequestsAtRest|TestRepairCSI|TestRepairDaemonSet|TestOptOut|TestTraceReasons|TestNoLivingPodIsEverALeftover$$|TestManyOrphans|TestCenterAway|TestReleaseByTheDaemon' ./test/e2e -args -lab -long
	$(TEST) $(RUN) -count=1 -timeout 20m -v -run 'TestEventCenter$$|TestTraceCenter$$' ./test/daemonset -args -lab -long
long-rpm: ## other packages, repairs that take minutes, the cost of a storm of units
	$(TEST) $(RUN) -count=1 -timeout 20m -v -run 'TestPackageOfTheOtherArchitecture|TestRestartUnit|TestResetFailedUnitsDoesNotHelp|TestPrograms|TestUnitStorm|TestSlowPlugin' ./test/rpm -args -long
long-eventcenter: ## replicas that are killed, cut off, upgraded, migrated; the journal's process killed for minutes
	$(TEST) $(RUN) -count=1 -timeout 60m -v -run 'TestReplicas|TestAway|TestPartition|TestKilled$$|TestUpgradeReplicas|TestTwoLostVolumes|TestOutsideNATS|TestNATSSubject' ./cmd/eventcenter ./pkg/eventcenter/journal/jetstream -args -long
long-power: ## the event center's machine loses its power, twenty times
	$(TEST) $(RUN) -count=1 -timeout 90m -v -run TestPowerLoss ./cmd/eventcenter -args -guest -long
long-fleet: ## 500 agents and 5 slots on a real apiserver
	$(TEST) $(RUN) -count=1 -timeout 90m -v -run TestRealAPIServerClaims ./internal/kube -args -apiserver -long
long-trace: packages kwok etcd ## the answer key with an old etcd; tracecenter killed under load, frozen, and with many pods
	$(LABCTL) build
	$(TEST) $(RUN) -count=1 -timeout 90m -v -run 'TestRealAPIServer(OldEtcd|Killed|LateWatch|WithoutEvents|Scale)|TestColdStart' ./test/trace/answerkey -args -apiserver -long
long-hostile: ## 10,000 nodes whose witnesses fail and lie
	$(TEST) $(RUN) -count=1 -timeout 60m -run TestHostileNodes ./pkg/remediate/release -args -hostile.nodes 10000
long-pods: ## 2,000 pods live and die while kubelet, containerd and the agent are killed
	$(TEST) $(RUN) -count=1 -timeout 120m -v -run TestSoakOfPods ./test/e2e -args -lab -soak.pods 2000
long-soak: ## 1,000 releases of real leftovers, a kill -9 in every third
	$(TEST) $(RUN) -count=1 -timeout 150m -run TestReleaseSoak ./pkg/remediate/release -args -soak.releases 1000

.PHONY: packages
packages: ## install the Debian packages that the tests need; as root
	@mkdir -p .cache
	@if [ "$$(id -u)" = 0 ]; then flock .cache/packages.lock $(LABCTL) packages; else echo "not root: no packages are installed, tests that need root are skipped"; fi

.PHONY: vet lint
vet: lint ## gofmt, golangci-lint with go vet's checks, and the habits of the prose by folder, which never fail
	gofmt -l cmd internal packaging pkg test | (! grep .)
	go run ./test/words
lint: ## golangci-lint with .golangci.yml; builds it the first time
	$(LAYER) go tool -modfile=test/lint/go.mod golangci-lint run

.PHONY: new-check
new-check: ## a new check that works, to be filled in: ID=disk-glitter DOMAIN=storage
	@go run ./test/newcheck '$(ID)' '$(DOMAIN)'

.PHONY: quick
quick: ## the tests that need nothing of the machine; from Go's cache where nothing has changed
	go test -short $$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...)

.PHONY: unit race pure
unit: race pure ## the same in any order: with the race detector, then without it where there are no goroutines
race: packages # gcc
race: private export CGO_ENABLED := 1
race:
	$(TEST) $(APART) -race -short -shuffle=on -skip "$$($(SUITE) skip)" $$($(SUITE) packages race)
pure:
	$(TEST) $(APART) -short -shuffle=on $$($(SUITE) packages pure)

.PHONY: apart
apart: ## all tests of the packages that need root, programs or the kernel, with processes, mounts and a network of their own; as root
	NODEAGENT_ALONE=1 $(TEST) $(APART) -shuffle=on $$($(SUITE) packages apart)

.PHONY: machine
machine: ## all tests of the packages that need this machine for themselves; as root
	@mkdir -p .cache
	$(TEST) $(ALONE) -shuffle=on $$($(SUITE) packages machine)

.PHONY: release
release: ## all tests of the release of leftovers, with real mounts, processes and networks, but its own; as root
	$(TEST) -exec 'env -u GOGC NODEAGENT_ALONE=1' -shuffle=on $$($(SUITE) packages release)

.PHONY: test-npd
test-npd: ## node-problem-detector's own code beside the agent's, on the same files and lines; a module of its own
	$(LAYER) go test -C test/npd $(LIMIT) $(APART) -count=1 ./...

.PHONY: test-new-check
test-new-check: ## a newcomer follows CONTRIBUTING.md to a check that works
	$(TEST) $(APART) -count=1 ./test/newcheck

# Whatever a lab and its tests run or build: they have no network to download it from.
.PHONY: lab-programs
lab-programs: packages
	$(LABCTL) build
	go list -deps ./... >/dev/null

.PHONY: test-lab
test-lab: lab-programs ## the lab of the tests below: it comes up, is repaired, and leaves nothing
	$(TEST) $(LAB) -count=1 -v ./test/lab -args -lab

KWOK = $(CURDIR)/.cache/kwok-$$(go list -C test/kwok -m -f '{{.Version}}' sigs.k8s.io/kwok)/kwok
.PHONY: kwok
kwok:
	test -x $(KWOK) || CGO_ENABLED=0 GOWORK=off go build -C test/kwok -trimpath -tags $(TAGS) -o $(KWOK) sigs.k8s.io/kwok/cmd/kwok

ETCD = $(CURDIR)/.cache/etcd-$$(go list -C test/etcd -m -f '{{.Version}}' go.etcd.io/etcd/server/v3)/etcd
.PHONY: etcd
etcd:
	test -x $(ETCD) || CGO_ENABLED=0 GOWORK=off go build -C test/etcd -trimpath -tags $(TAGS) -o $(ETCD) go.etcd.io/etcd/server/v3

.PHONY: test-apiserver
test-apiserver: packages kwok etcd ## agent and event center on a real kube-apiserver, without a node
	$(LABCTL) build
	$(TEST) $(APART) -count=1 -v -run 'TestRealAPIServer|TestRealPostgreSQL' ./internal/kube ./cmd/eventcenter ./cmd/tracecenter ./test/trace/answerkey -args -apiserver

.PHONY: e2e
e2e: lab-programs ## tests on a real one-node cluster
	$(TEST) $(LAB) -count=1 -parallel 7 -v ./test/e2e -args -lab

.PHONY: test-users
test-users: ## pods with users of their own, of the node's network, and static ones, with a current containerd and runc
	$(TEST) $(RUN) -count=1 -v -run TestEverySortOfPod ./test/e2e -args -lab -containerd=2 -users

.PHONY: test-crio
test-crio: ## the agent on a node whose runtime is CRI-O, which is built the first time
	$(TEST) $(RUN) -count=1 -v -run TestCRIO ./test/e2e -args -lab -crio

.PHONY: test-daemonset
test-daemonset: lab-programs ## the DaemonSet under the real kubelet: image, manifests, chart, least privilege
	$(LABCTL) helm
	$(TEST) $(LAB) -count=1 -v ./test/daemonset -args -lab -containerd 2

.PHONY: e2e-daemonset
e2e-daemonset: lab-programs ## e2e with the agent as the DaemonSet and containerd 2 instead of Debian's 1.6, where a test is of either
	$(TEST) $(LAB) -count=1 -v ./test/e2e -args -lab -daemonset -containerd 2

.PHONY: test-containerd
test-containerd: packages ## the tests that start a containerd of their own, with containerd 2 instead of Debian's 1.6
	$(LABCTL) build
	PATH=$(CONTAINERD2):$$PATH $(TEST) $(APART) -count=1 -v -run '$(CONTAINERD_TESTS)' \
	  $$(grep -rlE 'func Test\w*($(subst TestCRI$$,CRI\b,$(CONTAINERD_TESTS)))' --include='*_test.go' internal pkg | xargs -n1 dirname | sort -u | sed 's,^,./,')

.PHONY: fuzz
fuzz: ## every fuzz target for 30 s, more than half an hour; an input that fails is kept in testdata/fuzz
	test/fuzz.sh 30s

.PHONY: mutants
mutants: ## takes out each guard of the release, one at a time, and demands that a test notices; as root, an hour
	go run ./test/mutants

AXE := axe-core-4.14.1
.PHONY: browser
browser: ## the event center's pages in Chromium: a person uses them, with and without JavaScript; accessible, by axe
	mkdir -p .cache/$(AXE)
	test -x /usr/bin/chromium || apt-get install -y --no-install-recommends chromium
	test -s .cache/$(AXE)/package/axe.min.js || (cd .cache && npm pack --silent axe-core@$(AXE:axe-core-%=%) && tar -xzf $(AXE).tgz -C $(AXE))
	cd test/browser && go vet . && go test -vet=off -count=1 -timeout 10m -v . -args -axe $(CURDIR)/.cache/$(AXE)/package/axe.min.js

.PHONY: monitoring
monitoring: ## the alert rules and the dashboard in the real Prometheus, on the metrics of real programs
	mkdir -p .cache/prometheus # unpacked, not installed: the package would start a server
	test -x .cache/prometheus/usr/bin/promtool || (cd .cache/prometheus && apt-get download -o APT::Sandbox::User=root prometheus && dpkg -x prometheus_*.deb .)
	test -x .cache/prometheus/usr/bin/prometheus-alertmanager || (cd .cache/prometheus && apt-get download -o APT::Sandbox::User=root prometheus-alertmanager && dpkg -x prometheus-alertmanager_*.deb .)
	go test -count=1 -timeout 10m -v ./test/monitoring -args -prometheus $(CURDIR)/.cache/prometheus/usr/bin

.PHONY: guest
guest: ## tests that break the machine they run on, in emulated ones with Debian's kernel: disks, links, file servers, processors, memory, sensors, the kernel itself; suspended, restored, reset; and a node with cgroup v2, systemd and containerd 2
	$(TEST) $(RUN) -count=1 -timeout 100m -v ./test/guest -args -guest

.PHONY: lab lab-down
lab: ## bring up a real one-node cluster on this machine, with Debian's containerd
	$(LABCTL) up
lab-down: ## remove it without a trace
	$(LABCTL) down

.PHONY: bench
bench: ## what the agent costs and how fast it is, on the lab, as a table, beside node-problem-detector, on a node with 0, 60 and 100 pods: an hour; BENCH=--short: 60 pods, 12 minutes; BENCH="--cost --pods 60 --idle 5m": at rest only; BENCH=--acts: repairs and taints only
	go run ./test/bench --dir $(LAB_DIR) $(BENCH)

.PHONY: bench-eventcenter
bench-eventcenter: ## what the event center costs with 10,000 simulated nodes; 5 minutes; BENCH=-brief: 2
	go test -vet=off -count=1 -timeout 60m -v -run '^TestMeasure$$' ./cmd/eventcenter -args -measure $(BENCH)

include packaging/*/Makefile.inc

.PHONY: help
help:
	@grep -hE '^[a-z0-9 -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9 -]+):.*## /\1\t/' | column -t -s "$$(printf '\t')"

package guest

import (
	"cmp"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/need"
)

var withGuest = flag.Bool("guest", false, "boot a machine of its own for these tests; needs qemu-system-x86 and the "+
	"other packages of make packages")

// TestGuest breaks a guest whose PID 1 is a shell: it is up in seconds, and only the test and the agent run there.
func TestGuest(t *testing.T) { inGuest(t, "", Guest{Modules: "modules"}) }

// TestSystemd runs the agent in its unit, in a guest whose PID 1 is systemd.
func TestSystemd(t *testing.T) { inGuest(t, "Unit", Guest{Systemd: true}) }

// TestRepair has the agent in its unit repair faults of systemd, the kernel, a real containerd and a real kubelet.
// These tests wait for one another, and for repairs that must not help.
func TestRepair(t *testing.T) { inGuest(t, "Repair", Guest{Systemd: true, Limit: 45 * time.Minute}) }

// TestMachine stops, suspends and restores a whole guest, has its processor report errors, and has it panic. The tests
// of Again run after that.
func TestMachine(t *testing.T) { inGuest(t, "Machine", Guest{Bare: true}) }

// TestCrash breaks the kernel of a guest of its own, to not affect other tests.
func TestCrash(t *testing.T) { inGuest(t, "Crash", Guest{Modules: "modules"}) }

// inGuest runs the tests of ./inside whose names start with a word in a guest, with the real agent. Each of them is a
// subtest here.
func inGuest(t *testing.T, word string, g Guest) {
	t.Helper()
	need.Flag(t, *withGuest, "-guest: boots a machine of its own")
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	build(t, repo, "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o",
		filepath.Join(dir, "nodeagent"), "./cmd/nodeagent")
	build(t, repo, "go", "test", "-c", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "inside.test"),
		"./test/guest/inside")
	log := &strings.Builder{}
	g.Cache, g.Dir, g.Output = filepath.Join(repo, ".cache"), dir, &tee{t: t, all: log}
	limit := cmp.Or(g.Limit, 20*time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tests, others := "^Test"+word, "^Test(Unit|Repair|Machine|Crash|Again|Systemd)"
	if word != "" {
		others = "^$"
	}
	if only := os.Getenv("GUEST_RUN"); only != "" {
		here := !regexp.MustCompile(others).MatchString(only) && strings.HasPrefix(only, "Test"+word)
		need.Flag(t, here, "GUEST_RUN names tests of another guest")
		tests = only
	}
	programs, err := g.programs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{filepath.Join(dir, "inside.test"), "-test.v", "-test.parallel=24", "-test.timeout=" + (limit - 2*time.Minute).String(),
		"-test.run", tests, "-test.skip", others, "-inside", "-agent", filepath.Join(dir, "nodeagent"), "-repo", repo,
		"-modules", filepath.Join(dir, "modules"), "-programs", programs}
	g.Again = slices.Clone(args)
	g.Again[slices.Index(args, tests)] = "^TestAgain"
	code, err := g.Run(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	subtests(t, log.String(), code)
	if g.Bare && !strings.Contains(log.String(), "PASS: TestAgain") &&
		regexp.MustCompile(tests).MatchString("TestMachinePanics") {
		t.Error("the guest was not booted again")
	}
}

// subtests makes each test that ran in the guest a subtest. Code is the exit code of all.
func subtests(t *testing.T, log string, code int) {
	t.Helper()
	results := regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\S+)`).FindAllStringSubmatch(log, -1)
	if len(results) == 0 {
		t.Errorf("the guest ran no test; exit code %d", code)
	}
	for _, r := range results {
		t.Run(strings.TrimPrefix(r[2], "Test"), func(t *testing.T) {
			switch r[1] {
			case "FAIL":
				t.Error("failed in the guest; its output stands above")
			case "SKIP":
				t.Error("skipped in the guest; nothing is skipped there")
			}
		})
	}
	if code != 0 && !t.Failed() {
		t.Errorf("exit code %d", code)
	}
}

func build(t *testing.T, repo, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = repo, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// tee logs the guest's output while it runs, and keeps it.
type tee struct {
	t   *testing.T
	all *strings.Builder
}

func (o *tee) Write(data []byte) (int, error) {
	o.t.Log("guest| " + strings.TrimRight(string(data), "\n"))
	return o.all.Write(data)
}

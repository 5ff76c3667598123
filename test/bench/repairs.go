package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"

	"github.com/nodeagent/nodeagent/test/harness"
)

// repairTests are the tests that repair a real fault. Each logs how long the repair took.
var repairTests = []struct {
	pkg, run string
	args     []string
}{
	{"./pkg/remediate/repair", "^(TestRepairOwnNetwork|TestFreeDiskSpaceOnAFullDisk)$", nil},
	{"./test/e2e", "^(TestRepairCSIRegistration|TestRepairDaemonSet)$", []string{"-args", "-lab", "-long"}},
	{"./test/rpm", "^TestRestartUnit$", []string{"-args", "-long"}},
}

// repaired is a line of such a test: see repairs.
var repaired = regexp.MustCompile(`repaired by (\S+) in (\S+)`)

// repairs times each repair that helps: from the first to the last run in which its check finds the fault, without the
// age that a finding must have (minAge).
func (b *bench) repairs(ctx context.Context) error {
	for _, test := range repairTests {
		logf("timing the repairs of %s", test.pkg)
		found, err := outputOf(ctx, repaired, test.pkg, test.run, test.args...)
		if err != nil {
			return err
		}
		for _, line := range found {
			b.rows = append(b.rows, row{"found → healthy by " + string(line[1]), string(line[2]), "", ""})
		}
	}
	return nil
}

// tainted and isolated are lines of the tests that time taints.
var (
	tainted  = regexp.MustCompile(`fatal finding to taint: (.+)`)
	isolated = regexp.MustCompile(`read-only disk to taint: (.+)`)
)

// taint times how soon others see the taint of a node with a fatal finding, on a real apiserver; and how soon a real
// node has it after its disk has failed, including all of the agent.
func (b *bench) taint(ctx context.Context) error {
	const times = "250"
	logf("timing %s taints", times)
	found, err := outputOf(ctx, tainted, "./internal/kube", "^TestRealAPIServerTaintLatency$", "-args", "-apiserver", "-taints",
		times)
	if err != nil {
		return err
	}
	b.rows = append(b.rows, row{"fatal finding → taint in a watch of the apiserver", string(found[0][1]), "", "p99 2 s"})
	const disks = 3
	logf("timing the taints of %d disks", disks)
	var taken []string
	for range disks {
		found, err := outputOf(ctx, isolated, "./test/daemonset", "^TestDaemonSet$/^(image|failing_disk)$", "-args", "-lab")
		if err != nil {
			return err
		}
		taken = append(taken, string(found[0][1]))
	}
	b.rows = append(b.rows, row{"disk becomes read-only → taint of the Node", strings.Join(taken, ", "), "", "5 s"})
	return nil
}

// outputOf runs a test and returns the matches in its output of an expression that must occur.
func outputOf(ctx context.Context, what *regexp.Regexp, pkg, run string, args ...string) ([][][]byte, error) {
	repo, err := harness.Repo()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "-v", "-run", run, pkg}, args...)...)
	cmd.Dir, cmd.Env = repo, append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("go test %s: %w\n%s", pkg, err, out[max(0, len(out)-4000):])
	}
	found := what.FindAllSubmatch(out, -1)
	if len(found) == 0 {
		return nil, fmt.Errorf("go test %s does not say %q: %s", pkg, what, bytes.TrimSpace(out))
	}
	return found, nil
}

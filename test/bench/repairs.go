package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"

	"github.com/nodeagent/nodeagent/test/harness"
)

// repairTests are the tests in which a real fault is repaired. Each logs how long that took.
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

// repairs times each repair that helps: from when its check found the fault until that does not find it any more, without
// the age that a finding must have (minAge).
func (b *bench) repairs(ctx context.Context) error {
	repo, err := harness.Repo()
	if err != nil {
		return err
	}
	for _, test := range repairTests {
		say("timing the repairs of %s", test.pkg)
		cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "-v", "-run", test.run, test.pkg},
			test.args...)...)
		cmd.Dir, cmd.Env = repo, append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("go test %s: %w\n%s", test.pkg, err, out[max(0, len(out)-4000):])
		}
		found := repaired.FindAllSubmatch(out, -1)
		if len(found) == 0 {
			return fmt.Errorf("go test %s says nothing of a repair: %s", test.pkg, bytes.TrimSpace(out))
		}
		for _, line := range found {
			b.rows = append(b.rows, row{"found → healthy by " + string(line[1]), string(line[2]), "", ""})
		}
	}
	return nil
}

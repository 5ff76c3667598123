// Package filesystemtest runs checks of filesystems against the machine that the tests run on.
package filesystemtest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Settles waits until the check has no findings: some filesystems free deleted data a moment later.
func (n *RealNode) Settles() {
	n.t.Helper()
	deadline := time.After(time.Minute)
	for {
		findings, err := n.Check.Run(n.t.Context(), n.Host)
		found := false
		for _, f := range findings {
			found = found || mount.Below(f.Subject.Name, n.Dir)
		}
		if !found {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			n.t.Fatal(findings, err)
		}
	}
}

// RealNode runs one check on the machine that the test runs on. Only filesystems below its directory count: others may
// really fail.
type RealNode struct {
	t     *testing.T
	Dir   string
	Host  *host.Host
	Check detect.Check
	Later time.Duration // how far the agent's clock is ahead of the real one
}

// NewRealNode returns the machine that the test runs on, for a check.
func NewRealNode(t *testing.T, check detect.Check) *RealNode {
	t.Helper()
	n := &RealNode{t: t, Dir: t.TempDir(), Check: check}
	n.Host = &host.Host{
		Prober: probe.NewProber(),
		Clock: func() finding.Timestamp {
			now := host.Now()
			now.SinceBoot, now.Wall = now.SinceBoot+n.Later, now.Wall.Add(n.Later)
			return now
		},
		Paths:  host.Paths{InitPID: os.Getpid(), KubeletRoot: filepath.Join(n.Dir, "kubelet"), CgroupRoot: "/"},
		Mounts: &mountinfo.Reader{}, // as in the agent: a table is kept while it is valid
	}
	t.Cleanup(func() { _ = n.Host.Mounts.Close() }) // only read
	return n
}

// Path returns the path of a name in the test's directory.
func (n *RealNode) Path(name string) string { return filepath.Join(n.Dir, name) }

// Expect runs the check and fails unless it finds exactly this: subject below the directory, severity, reason.
func (n *RealNode) Expect(want ...[3]string) []finding.Finding {
	n.t.Helper()
	n.Later += time.Second // runs are some time apart, as in the agent
	findings, err := n.Check.Run(n.t.Context(), n.Host)
	partial, isPartial := errors.AsType[*finding.PartialError](err)
	if err != nil && !isPartial {
		n.t.Fatal(err)
	}
	if isPartial {
		for subject, why := range partial.Subjects {
			if mount.Below(subject.Name, n.Dir) {
				n.t.Errorf("%s: %v", subject, why)
			}
		}
	}
	findings = slices.DeleteFunc(findings, func(f finding.Finding) bool { return !mount.Below(f.Subject.Name, n.Dir) })
	var got [][3]string
	for _, f := range findings {
		name, _ := filepath.Rel(n.Dir, f.Subject.Name)
		got = append(got, [3]string{name, string(f.Severity), f.Reason})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("(-want +got):\n%s%+v", diff, findings)
	}
	return findings
}

// SuperOption reports whether the mount table shows an option of the filesystem at a point.
func (n *RealNode) SuperOption(point, option string) bool {
	n.t.Helper()
	mounts, err := mount.Table(n.Host)
	if err != nil {
		n.t.Fatal(err)
	}
	return slices.ContainsFunc(mounts, func(m mount.Mount) bool {
		return m.Point == point && slices.Contains(m.SuperOptions, option)
	})
}

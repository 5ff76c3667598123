package inspect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// The address of a sandbox that is gone is a leftover with its pod, also when nothing but its lease is left. Those of a
// living pod, of one that is being created, and of podman's network are not reported; what cannot be read is told once.
func TestIPAMLeases(t *testing.T) {
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	n.add(other, "starting")
	for uid, id := range map[string]string{dead: deadSandbox, living: sandbox, other: newSandbox} {
		n.attach(uid, id)
	}
	const network = "nodeagent-inspect-test"
	lost := strings.Repeat("e", 64)
	ours, podman := n.mkdir(n.host.Paths.CNINetworksDir, network), n.mkdir(n.host.Paths.CNINetworksDir, "podman")
	for file, content := range map[string]string{
		ours + "/10.250.7.99": lost, ours + "/10.250.7.100": "", ours + "/10.250.7.101": strings.Repeat("x", 2000),
		ours + "/10.250.7.102": "hand-made\r\neth0", podman + "/10.88.0.2": deadSandbox + "\r\neth0",
	} {
		write(t, file, content)
	}
	if err := unix.Mkfifo(ours+"/10.250.7.103", 0o600); err != nil {
		t.Fatal(err)
	}
	i := n.inspector()
	report, history := passes(t, n, i, nil, 3, 4*time.Minute)
	check := func(gone, unowned Verdict) {
		t.Helper()
		want := map[string]Verdict{deadSandbox: gone, sandbox: Live, newSandbox: Live, lost: unowned}
		got := map[string]Verdict{}
		for _, o := range report.Objects {
			switch {
			case o.Kind != IPAMLease || o.Verdict == Foreign:
			case o.SandboxID == "":
				if o.Verdict != unowned || o.Facts["malformed"] == "" {
					t.Errorf("%s: %s: %s", o.ID, o.Verdict, o.Why)
				}
			default:
				got[o.SandboxID] = o.Verdict
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	check(Candidate, Live)
	cached := filepath.Join(n.host.Paths.CNICacheDir, "results", network+"-"+deadSandbox+"-eth0")
	if err := os.Remove(cached); err != nil { // as CNI DEL does
		t.Fatal(err)
	}
	report, _ = passes(t, n, i, history, 1, 4*time.Minute)
	check(Leftover, Unowned)
	if got := verdicts(report)[IPAMLease][Foreign]; got != 2 {
		t.Errorf("%d are foreign, want podman's and the one made by hand", got)
	}
}

package kinds_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// The address of a deleted sandbox is a leftover with its pod, even if only its lease is left. Those of a living pod,
// of one being created, and of podman's network are not reported; a read error is reported once.
func TestIPAMLeases(t *testing.T) {
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	n.Add(other, "starting")
	for uid, id := range map[string]string{dead: deadSandbox, living: sandbox, other: newSandbox} {
		n.Attach(uid, id)
	}
	const network = "nodeagent-inspect-test"
	lost := strings.Repeat("e", 64)
	ours, podman := n.Mkdir(n.Host.Paths.CNINetworksDir, network), n.Mkdir(n.Host.Paths.CNINetworksDir, "podman")
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
	check := func(gone, unowned object.Verdict) {
		t.Helper()
		want := map[string]object.Verdict{deadSandbox: gone, sandbox: object.Live, newSandbox: object.Live,
			lost: unowned}
		got := map[string]object.Verdict{}
		for _, o := range report.Objects {
			switch {
			case o.Kind != object.IPAMLease || o.Verdict == object.Foreign:
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
	check(object.Candidate, object.Live)
	cached := filepath.Join(n.Host.Paths.CNICacheDir, "results", network+"-"+deadSandbox+"-eth0")
	if err := os.Remove(cached); err != nil { // as CNI DEL does
		t.Fatal(err)
	}
	report, _ = passes(t, n, i, history, 1, 4*time.Minute)
	check(object.Leftover, object.Unowned)
	if got := verdicts(report, object.IPAMLease)[object.Foreign]; got != 2 {
		t.Errorf("%d are foreign, want podman's and the one made by hand", got)
	}
}

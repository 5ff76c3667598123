package network

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// savedState keeps in memory the state that an agent would keep on disk.
type savedState map[string][]byte

func (k savedState) Load(key string) ([]byte, bool) { value, ok := k[key]; return value, ok }
func (k savedState) Save(key string, value []byte)  { k[key] = value }

// machine is a made-up machine that an agent observes, and after it another one with the same saved state.
type machine struct {
	t    *testing.T
	host *host.Host
	up   time.Duration
}

func newMachine(t *testing.T, files map[string]string) *machine {
	t.Helper()
	n := &machine{t: t, up: time.Hour}
	n.host = &host.Host{NodeName: "fixture", Files: host.Files{Root: t.TempDir()}, Clock: func() finding.Timestamp {
		return finding.Timestamp{Boot: "b", SinceBoot: n.up}
	}}
	checktest.FixtureNetwork(t, n.host, txtar.File{Data: []byte(`{}`)})
	n.write(files)
	return n
}

func (n *machine) write(files map[string]string) {
	n.t.Helper()
	for name, text := range files {
		checktest.WriteFile(n.t, n.host.Files.Root, txtar.File{Name: name, Data: []byte(text)})
	}
}

func (n *machine) expect(c detect.Check, want ...string) {
	n.t.Helper()
	n.up += time.Minute
	findings, err := c.Run(n.t.Context(), n.host)
	if err != nil {
		n.t.Fatal(err)
	}
	var got []string
	for _, f := range findings {
		got = append(got, string(f.Severity)+" "+f.Reason)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("(-want +got):\n%s%+v", diff, findings)
	}
}

// A cable pulled while the node restarts is reported, although the counters of this boot do not show it.
func TestLinkStateRemembers(t *testing.T) {
	const dir = "sys/devices/pci0000:00/0000:00:03.0/net/eth0/"
	n := newMachine(t, map[string]string{
		"sys/class/net/eth0@": "../../devices/pci0000:00/0000:00:03.0/net/eth0",
		dir + "flags":         "0x1003", dir + "operstate": "up", dir + "type": "1",
		dir + "carrier_up_count": "0", dir + "carrier_down_count": "0",
	})
	store := savedState{}
	n.expect(LinkState(DefaultLinkStateSettings(), store))
	n.write(map[string]string{dir + "operstate": "down"})
	n.expect(LinkState(DefaultLinkStateSettings(), nil)) // a port that was never plugged in
	n.expect(LinkState(DefaultLinkStateSettings(), store), "fatal LinkDown")
	n.expect(LinkState(LinkStateSettings{Ignore: []string{"eth1"}}, store), "fatal LinkDown")
	n.expect(LinkState(DefaultLinkStateSettings(), savedState{"link-state/links": []byte("{")}))
}

// A route lost across a restart is reported for a week.
func TestDefaultRouteRemembers(t *testing.T) {
	const header = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
	n := newMachine(t, map[string]string{"proc/net/route": header +
		"eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"})
	store := savedState{}
	n.expect(DefaultRoute(store))
	n.write(map[string]string{"proc/net/route": header})
	c := DefaultRoute(store)
	n.expect(c, "fatal DefaultRouteLost")
	for range 6 * 24 * 6 {
		n.up += 9 * time.Minute
		n.expect(c, "fatal DefaultRouteLost")
	}
	c = DefaultRoute(store) // another restart does not begin the week anew
	for range 7 * 24 {
		n.up += 9 * time.Minute
		if _, err := c.Run(t.Context(), n.host); err != nil {
			t.Fatal(err)
		}
	}
	n.expect(c, "info DefaultRouteMissing")
	n.expect(DefaultRoute(store), "info DefaultRouteMissing")
	n.expect(DefaultRoute(savedState{routeHistoryKey: []byte("{")}), "info DefaultRouteMissing")
}

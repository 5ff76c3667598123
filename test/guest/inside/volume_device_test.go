package inside

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// TestMappingsOfVolumes: encrypted mappings, with cryptsetup's names, of a volume that a living pod has mounted, of a
// removed volume, and of one that is below another device; and mappings that are not listed: an administrator's, and
// one of LVM, which stays by design.
func TestMappingsOfVolumes(t *testing.T) {
	needGuest(t)
	t.Parallel()
	ram(t)
	run(t, "modprobe", "dm-crypt")
	n := inspecttest.NewNode(t)
	const claim, size = "pvc-%d3333333-3333-4333-8333-333333333333", 131072 // sectors
	made := 0
	create := func(name, kind string) string {
		made++
		table := fmt.Sprintf("0 %d crypt aes-xts-plain64 %s 0 /dev/ram14 %d", size, strings.Repeat("ab", 64), made*size)
		return "/dev/" + mapped(t, name, table, "--uuid", kind+name)
	}
	const luks = "CRYPT-LUKS2-0123456789abcdef0123456789abcdef-"
	living, gone, below := create(fmt.Sprintf(claim, 1), luks), create(fmt.Sprintf(claim, 2), luks),
		create("luks-"+fmt.Sprintf(claim, 3), luks)
	above := mapped(t, "vg-data", fmt.Sprintf("0 %d linear %s 0", size, below), "--uuid", "LVM-0123")
	create("root_crypt", luks)
	create("vg-"+fmt.Sprintf(claim, 4), "LVM-")
	run(t, "mkfs.ext4", "-q", "-F", living)
	n.Mount(living, n.PodDir(inspecttest.Living, "volumes/kubernetes.io~csi", fmt.Sprintf(claim, 1), "mount"), "ext4", 0)

	report := inspector(t, n)()
	got := map[string]string{}
	for _, o := range report.Objects {
		if o.Kind == object.BlockDevice && strings.HasPrefix(o.ID, "/dev/dm-") {
			got[o.ID] = strings.TrimSpace(string(o.Verdict) + " " + o.InUse)
			t.Logf("%s: %s: %s; %v %v", o.ID, o.Verdict, o.Why, o.Identity.Values(), o.Facts)
		}
	}
	want := map[string]string{living: "live", gone: "unowned", below: "live it is used by /dev/" + above}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s\n%+v", diff, report.Errors)
	}
}

// inspector returns a function that inspects this machine as a node, until the leftovers are proven.
func inspector(t *testing.T, n *inspecttest.Node) func() object.Report {
	settings := object.DefaultSettings()
	settings.HostNamespaces = true
	i := inspect.New(n.Host, settings, slog.New(slog.DiscardHandler))
	var history object.History
	return func() (report object.Report) {
		for range 4 {
			report, history = i.Pass(t.Context(), history)
			n.After(settings.Grace)
		}
		return report
	}
}

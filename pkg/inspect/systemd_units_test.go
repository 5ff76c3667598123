package inspect

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
)

// Units of pods and containers that are gone are leftovers; those of living ones and of an administrator are not.
func TestSystemdUnits(t *testing.T) {
	n := newNode(t)
	n.host.Paths.CgroupDriver, n.host.Paths.CgroupRoot = host.SystemdDriver, "/inspecttest"
	slice := func(uid string) string {
		return "inspecttest-kubepods-besteffort-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
	}
	scope := func(c string) string { return "cri-containerd-" + strings.Repeat(c, 64) + ".scope" }
	pods := n.host.Paths.KubeletRoot + "/pods/"
	n.mount("tmpfs", n.podDir(dead, "volumes/mounted"), "tmpfs", 0)
	units := []systemd.PodUnit{
		{Name: slice(dead), Active: "active"}, {Name: slice(living), Active: "active"},
		{Name: "kubepods.slice", Active: "active"}, {Name: "admin-" + slice(dead), Active: "failed"},
		{Name: scope("a"), Active: "failed", Description: "libcontainer container"},
		{Name: scope("b"), Active: "failed"}, {Name: scope("c"), Active: "active"},
		{Name: "run-r1.scope", Active: "active", Description: transientMount + pods + dead + "/volumes/x"},
		{Name: "run-r2.scope", Active: "active", Description: transientMount + "/mnt"},
		{Name: "run-r3.scope", Active: "failed", Description: "an administrator's"},
		{Name: "gone.mount", Active: "inactive", Description: pods + dead + "/volumes/gone"},
		{Name: "mounted.mount", Active: "failed", Description: pods + dead + "/volumes/mounted"},
		{Name: "living.mount", Active: "failed", Description: pods + living + "/volumes/x"},
		{Name: "mnt.mount", Active: "failed", Description: "/mnt"},
	}
	n.host.Systemd.PodUnits = func(context.Context) ([]systemd.PodUnit, error) { return units, nil }
	n.containers = []*cri.Container{{Id: strings.Repeat("b", 64)}}
	report := n.ripen(t, History{}, n.inspector())
	want := map[string]Verdict{slice(dead): Leftover, slice(living): Live, scope("a"): Unowned, scope("b"): Live,
		"run-r1.scope": Leftover, "gone.mount": Leftover, "living.mount": Live}
	if diff := cmp.Diff(want, verdictsByName(report, SystemdUnit, func(o Assessment) string { return o.ID })); diff != "" {
		t.Errorf("%s\n%+v", diff, report.Errors)
	}
	n.host.Systemd.PodUnits = func(context.Context) ([]systemd.PodUnit, error) {
		return nil, fmt.Errorf("systemd: %w", hosterr.ErrNotConfigured)
	}
	if objects, err := listSystemdUnits(t.Context(), NewScan(t.Context(), n.host)); len(objects) > 0 || err != nil {
		t.Errorf("without systemd: %+v, %v", objects, err)
	}
}

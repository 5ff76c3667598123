package kinds_test

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
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// transient begins kubelet's description of the scope of a mount.
const transient = "Kubernetes transient mount for "

// Units of deleted pods and containers are leftovers; those of living ones and of an administrator are not.
func TestSystemdUnits(t *testing.T) {
	n := newNode(t)
	n.Host.Paths.CgroupDriver, n.Host.Paths.CgroupRoot = host.SystemdDriver, "/inspecttest"
	slice := func(uid string) string {
		return "inspecttest-kubepods-besteffort-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
	}
	scope := func(c string) string { return "cri-containerd-" + strings.Repeat(c, 64) + ".scope" }
	pods := n.Host.Paths.KubeletRoot + "/pods/"
	n.Mount("tmpfs", n.PodDir(dead, "volumes/mounted"), "tmpfs", 0)
	units := []systemd.PodUnit{
		{Name: slice(dead), Active: "active"}, {Name: slice(living), Active: "active"},
		{Name: "kubepods.slice", Active: "active"}, {Name: "admin-" + slice(dead), Active: "failed"},
		{Name: scope("a"), Active: "failed", Description: "libcontainer container"},
		{Name: scope("b"), Active: "failed"}, {Name: scope("c"), Active: "active"},
		{Name: "run-r1.scope", Active: "active", Description: transient + pods + dead + "/volumes/x"},
		{Name: "run-r2.scope", Active: "active", Description: transient + "/mnt"},
		{Name: "run-r3.scope", Active: "failed", Description: "an administrator's"},
		{Name: "gone.mount", Active: "inactive", Description: pods + dead + "/volumes/gone"},
		{Name: "mounted.mount", Active: "failed", Description: pods + dead + "/volumes/mounted"},
		{Name: "living.mount", Active: "failed", Description: pods + living + "/volumes/x"},
		{Name: "mnt.mount", Active: "failed", Description: "/mnt"},
	}
	n.Host.Systemd.PodUnits = func(context.Context) ([]systemd.PodUnit, error) { return units, nil }
	n.Containers = []*cri.Container{{Id: strings.Repeat("b", 64)}}
	report := n.ripen(t, object.History{}, n.inspector())
	want := map[string]object.Verdict{slice(dead): object.Leftover, slice(living): object.Live,
		scope("a"): object.Unowned, scope("b"): object.Live,
		"run-r1.scope": object.Leftover, "gone.mount": object.Leftover, "living.mount": object.Live}
	if diff := cmp.Diff(want, verdictsByName(report, object.SystemdUnit,
		func(o object.Assessment) string { return o.ID })); diff != "" {
		t.Errorf("%s\n%+v", diff, report.Errors)
	}
	n.Host.Systemd.PodUnits = func(context.Context) ([]systemd.PodUnit, error) {
		return nil, fmt.Errorf("systemd: %w", hosterr.ErrNotConfigured)
	}
	if objects, err := kinds.Of(object.SystemdUnit).List(t.Context(), hostscan.New(t.Context(), n.Host,
		hostscan.Deadline{})); len(objects) > 0 || err != nil {
		t.Errorf("without systemd: %+v, %v", objects, err)
	}
}

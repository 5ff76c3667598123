package kinds

import (
	"errors"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func TestDriverIsDecided(t *testing.T) {
	fs, systemd := host.CgroupfsDriver, host.SystemdDriver
	none := errors.New("unknown service")
	for name, test := range map[string]struct {
		witness driverWitness
		want    string
	}{
		"configured": {driverWitness{configured: fs, living: map[string]int{systemd: 3}, runtime: systemd},
			fs},
		"living pods":          {driverWitness{living: map[string]int{fs: 1}}, fs},
		"of systemd":           {driverWitness{living: map[string]int{systemd: 9}, runtimeErr: none}, systemd},
		"before the runtime":   {driverWitness{living: map[string]int{fs: 1}, runtime: systemd}, fs},
		"in both trees":        {driverWitness{living: map[string]int{fs: 1, systemd: 90}, runtime: systemd}, ""},
		"runtime":              {driverWitness{runtime: systemd}, systemd},
		"runtime, cgroupfs":    {driverWitness{runtime: fs}, fs},
		"old runtime":          {driverWitness{runtimeErr: none}, ""},
		"runtime, another one": {driverWitness{runtime: "crun"}, ""},
		"nobody":               {driverWitness{}, ""},
	} {
		if got, why := test.witness.decide(); got != test.want || why == "" {
			t.Errorf("%s: %q %q, want %q", name, got, why, test.want)
		}
	}
}

// A list with an error proves no pod.
func TestLivePodsOfAKubeletThatDoesNotAnswer(t *testing.T) {
	o := inspecttest.Object(object.Cgroup, inspecttest.Living)
	o.Facts = map[string]string{"driver": host.CgroupfsDriver}
	inventory := inspecttest.Healthy().Kubelet
	if got := livingByDriver([]object.Object{o, o}, inventory); got[host.CgroupfsDriver] != 1 {
		t.Errorf("with an answer: %v", got)
	}
	names := inspecttest.ByName()
	names.ResolveNames()
	if got := livingByDriver([]object.Object{o}, names.Kubelet); got[host.CgroupfsDriver] != 1 {
		t.Errorf("with names only, and its sandbox: %v", got)
	}
	inventory.Err = errors.New("cut off")
	if got := livingByDriver([]object.Object{o}, inventory); len(got) != 0 {
		t.Errorf("without an answer: %v", got)
	}
}

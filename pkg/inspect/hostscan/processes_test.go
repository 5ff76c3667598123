package hostscan

import (
	"strings"
	"testing"
)

const (
	living = "11111111-1111-4111-8111-111111111111"
	dead   = "22222222-2222-4222-8222-222222222222"
)

// A process that is in both trees is foreign.
func TestProcessInTreesOfBothDrivers(t *testing.T) {
	pods := podLookup{known: make(map[string]cgroupPod)}
	slice := "/kubepods.slice/kubepods-pod" + strings.ReplaceAll(dead, "-", "_") + ".slice"
	for name, cgroups := range map[string]map[string]string{
		"drivers":          {"cpu": "/kubepods/pod" + dead, "pids": slice},
		"pods":             {"cpu": "/kubepods/pod" + dead, "pids": "/kubepods/pod" + living},
		"and kind's":       {"cpu": "/kubepods/pod" + dead, "pids": "/docker/x/kubepods/pod" + living},
		"and its own, too": {"cpu": "/docker/x/kubepods/pod" + dead, "pids": "/kubepods/pod" + dead},
	} {
		for range 20 { // whichever order the map has
			if p, ours, _ := pods.ofProcess(cgroups); p.Conflict == "" || !ours {
				t.Errorf("%s: %+v", name, p)
			}
		}
	}
	if p, ours, _ := pods.ofProcess(map[string]string{"cpu": "/kubepods/pod" + dead, "pids": "/"}); p.Conflict != "" ||
		!ours {
		t.Errorf("in some hierarchies only: %+v", p)
	}
}

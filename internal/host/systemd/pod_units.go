package systemd

import "fmt"

// PodUnit is a unit that kubelet or the runtime may have made for a pod. Its texts are valid UTF-8.
type PodUnit struct {
	Name        string // kubepods-besteffort-pod….slice, cri-containerd-….scope, run-….scope, ….mount
	Description string // of a mount: its mount point
	Active, Sub string
}

// maxPodUnits bounds the list. A node has some units for each of its pods.
const maxPodUnits = 20_000

// podUnits lists the slices of pods and the scopes of kubelet's mounts in any state, but the scopes of containers and
// mounts only if they are not active: active ones are numerous, and visible by their cgroup or mount.
func (q systemdQuery) podUnits() ([]PodUnit, error) {
	var units []PodUnit
	for _, list := range []struct{ states, patterns []string }{
		{[]string{}, []string{"*kubepods*.slice", "run-*.scope"}},
		{[]string{"inactive", "failed"}, []string{"cri-containerd-*.scope", "crio-*.scope", "*-pods-*.mount"}},
	} {
		listed, err := q.conn.ListUnitsByPatternsContext(q.ctx, list.states, list.patterns)
		if err != nil { // systemd before 230 has no such call
			return nil, fmt.Errorf("list units of pods: %w", q.peer.explain(err))
		}
		if len(units)+len(listed) > maxPodUnits {
			return nil, fmt.Errorf("list units of pods: more than %d", maxPodUnits)
		}
		for _, u := range listed {
			if u.LoadState == "not-found" {
				continue // only mentioned by another unit
			}
			units = append(units, PodUnit{Name: text(u.Name), Description: text(u.Description),
				Active: text(u.ActiveState), Sub: text(u.SubState)})
		}
	}
	return units, nil
}

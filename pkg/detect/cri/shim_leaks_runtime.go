package cri

import (
	"context"
	"fmt"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
)

// idState is the state of an ID in the runtime.
type idState int

const (
	idKnown idState = iota
	sandboxNotReady
)

// knownToRuntime returns the state of the IDs that the runtime knows. Further lists are read only while an ID is
// missing.
func knownToRuntime(ctx context.Context, h *host.Host, shims []runningShim) (map[string]idState, error) {
	ids := make(map[string]idState)
	missing := func() bool {
		for _, s := range shims {
			if _, known := ids[s.ID]; !known {
				return true
			}
		}
		return false
	}
	sandboxes, err := h.Runtime.Sandboxes(ctx)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	for _, s := range sandboxes {
		ids[s.GetId()] = idKnown
		if s.GetState() == cri.PodSandboxState_SANDBOX_NOTREADY {
			ids[s.GetId()] = sandboxNotReady
		}
	}
	if !missing() {
		return ids, nil
	}
	containers, err := h.Runtime.Containers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers {
		ids[c.GetId()] = idKnown
	}
	if !missing() || h.Containerd.Containers == nil || h.Containerd.Leases == nil {
		return ids, nil
	}
	own, err := h.Containerd.Containers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containerd's containers: %w", err)
	}
	for _, c := range own {
		ids[c.ID] = max(ids[c.ID], idKnown)
	}
	leases, err := h.Containerd.Leases(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containerd's leases: %w", err)
	}
	for _, l := range leases {
		ids[l.ID] = max(ids[l.ID], idKnown)
	}
	return ids, nil
}

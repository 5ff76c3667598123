package diskspace

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
)

// space is one filesystem and its free space.
type space struct {
	filesystem.Filesystem
	holds  []string // the node's own data on it; empty for others
	volume bool     // all its mounts are kubelet's, for pods
	answer probe.ProbeAnswer
}

// spacesOf returns the filesystems that can become full and whose space matters.
func spacesOf(mounts []mount.Mount, paths host.Paths, ignore []string) []space {
	holds := make(map[string][]string) // by device
	for _, own := range filesystem.NodeData(mounts, paths) {
		m, ok := filesystem.MountHolding(mounts, own.Path)
		if device := m.Device(); ok && !filesystem.IsRemote(m.FSType) && !slices.Contains(holds[device], own.Name) {
			holds[device] = append(holds[device], own.Name)
		}
	}
	candidates := make(map[string]bool) // devices: most mounts are volumes of pods in memory
	for _, m := range mounts {
		if filesystem.OnBlockDevice(m) || inMemory(m) {
			candidates[m.Device()] = true
		}
	}
	var spaces []space
	for _, f := range filesystem.FilesystemsOf(mounts, func(m mount.Mount) bool {
		device := m.Device()
		return candidates[device] || len(holds[device]) > 0
	}) {
		s := space{Filesystem: f, holds: holds[f.Device]}
		s.volume = !slices.ContainsFunc(s.Mounts, func(m mount.Mount) bool {
			return !filesystem.BelowKubelet(m.Point, paths)
		})
		if s.matters() && !s.Option("ro") && !s.Ignored(ignore) {
			spaces = append(spaces, s)
		}
	}
	return spaces
}

// matters reports whether a filesystem is checked.
func (s space) matters() bool {
	switch {
	case filesystem.ReadOnlyByDesign(s.Principal.FSType):
		return false
	case filesystem.OnBlockDevice(s.Principal), len(s.holds) > 0:
		return true
	}
	return slices.ContainsFunc(s.Mounts, inMemory)
}

// inMemory reports whether a mount is one of the node's own filesystems in memory.
func inMemory(m mount.Mount) bool {
	return m.FSType == "tmpfs" && m.Root == "/" && slices.Contains([]string{"/", "/run", "/dev/shm"}, m.Point)
}

// probe returns the filesystems that answered, and adds doubts about the others. It skips a filesystem wholly covered
// by other mounts: no path leads to it.
func (c *diskSpace) probe(ctx context.Context, h *host.Host, mounts []mount.Mount, all []space,
	results *checkkit.Results) (answered []space) {
	var keys []string
	var requests []probe.ProbeRequest
	tree := filesystem.NewTree(mounts)
	for _, s := range all {
		if request, err := s.Probe(h, tree); err == nil {
			keys, requests = append(keys, s.Identity()), append(requests, request)
		}
	}
	answers := c.hung.All(ctx, h, c.settings.Patience, keys, requests)
	for _, s := range all {
		result, probed := answers[s.Identity()]
		refused := syscall.Errno(result.Answer.Errno)
		switch {
		case !probed || results.Doubt(s.Subject(), result.Err):
		case refused != 0 && result.Answer.TotalBytes == 0: // open may be refused although statfs is not
			results.Doubt(s.Subject(), fmt.Errorf("statfs %s: %w", s.Principal.Point, refused))
		default:
			s.answer = result.Answer
			answered = append(answered, s)
		}
	}
	return answered
}

// podsOf names the pods whose volume it is. The node's own filesystems affect all pods.
func (s space) podsOf(ctx context.Context, h *host.Host) []string {
	if !s.volume {
		return nil
	}
	return s.VolumePods(ctx, h)
}

// images returns the size of images and containers on their filesystem, or 0. For logs and volumes of pods a walk would
// be needed, which is too expensive.
func (s space) images(ctx context.Context, h *host.Host) uint64 {
	if !slices.Contains(s.holds, filesystem.HoldsImages) || h.Runtime.ImageBytes == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second) // a runtime without space may be slow; the value is only for display
	defer cancel()
	bytes, err := h.Runtime.ImageBytes(ctx)
	if err != nil {
		return 0
	}
	return bytes
}

package remediate

import (
	"context"
	"fmt"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// isCSI reports whether a mount is one that kubelet had a CSI driver make.
func isCSI(o inspect.Assessment) bool {
	return strings.Contains(o.Identity["point"], "/pods/"+o.Pod.UID+"/"+csiVolumes)
}

// csiOwned returns why a CSI mount is not ours to unmount: its driver is not proven gone, or which one it is cannot
// be told.
func csiOwned(ctx context.Context, t Tools, o inspect.Assessment) string {
	if !isCSI(o) || t.Settings.UnmountCSI {
		return ""
	}
	_, rest, _ := strings.Cut(o.Identity["point"], "/pods/"+o.Pod.UID+"/"+csiVolumes)
	volume, _, _ := strings.Cut(rest, "/")
	note, err := readVolumeNote(ctx, t, o.Pod.UID, csiVolumes+volume+"/"+noteName)
	if err != nil {
		return fmt.Sprintf("which CSI driver the volume is of cannot be told: %v", err)
	}
	if why := t.Drivers.notGone(ctx, t, note.Driver); why != "" {
		return fmt.Sprintf("CSI driver %s owns the volume: %s", note.Driver, why)
	}
	return ""
}

package release

import (
	"context"
	"fmt"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// isCSI reports whether a mount was made by a CSI driver for kubelet.
func isCSI(o object.Assessment) bool {
	return strings.Contains(o.Identity.Mount.Point, "/pods/"+o.Pod.UID+"/"+csiVolumes)
}

// csiOwned returns why the agent must not unmount a CSI mount: its driver is unknown or not proven to be gone.
func csiOwned(ctx context.Context, t Tools, o object.Assessment) string {
	if !isCSI(o) || t.Settings.UnmountCSI {
		return ""
	}
	_, rest, _ := strings.Cut(o.Identity.Mount.Point, "/pods/"+o.Pod.UID+"/"+csiVolumes)
	volume, _, _ := strings.Cut(rest, "/")
	note, err := readVolumeNote(ctx, t, o.Pod.UID, csiVolumes+volume+"/"+noteName)
	if err != nil {
		return fmt.Sprintf("the CSI driver of the volume is not known: %v", err)
	}
	if why := t.Drivers.notGone(ctx, t, note.Driver); why != "" {
		return fmt.Sprintf("CSI driver %s owns the volume: %s", note.Driver, why)
	}
	return ""
}

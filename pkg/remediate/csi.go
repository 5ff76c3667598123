package remediate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// isCSI reports whether a mount is one that kubelet had a CSI driver make.
func isCSI(o inspect.Judged) bool {
	return strings.Contains(o.Identity["point"], "/pods/"+o.Pod.UID+"/volumes/kubernetes.io~csi/")
}

// csiOwned returns why a CSI mount is not ours to unmount: its driver is alive, or which one it is cannot be told.
func csiOwned(ctx context.Context, t Tools, o inspect.Judged) string {
	if !isCSI(o) || t.Settings.UnmountCSI {
		return ""
	}
	driver, err := driverOf(t, o)
	if err != nil {
		return fmt.Sprintf("which CSI driver the volume is of cannot be told: %v", err)
	}
	paths := t.Host.Paths
	for _, socket := range []string{
		path.Join(paths.PluginRegistry, driver+"-reg.sock"),
		path.Join(paths.KubeletRoot, "plugins", driver, "csi.sock"),
	} {
		if why := answers(ctx, socket); why != "" {
			return fmt.Sprintf("CSI driver %s owns the volume: %s", driver, why)
		}
	}
	return ""
}

// driverName is the form of CSI driver names: https://github.com/container-storage-interface/spec/blob/master/spec.md
var driverName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$`)

// driverOf reads kubelet's own note beside the mount point, <volume>/vol_data.json. It lies outside of what is mounted, so
// that no pod can write it.
func driverOf(t Tools, o inspect.Judged) (string, error) {
	top, rest, _ := strings.Cut(o.Identity["point"], "/volumes/kubernetes.io~csi/")
	volume, _, _ := strings.Cut(rest, "/")
	data, err := t.Host.Files.Read(path.Join(top, "volumes/kubernetes.io~csi", volume, "vol_data.json"))
	if err != nil {
		return "", err
	}
	var note struct {
		DriverName string `json:"driverName"`
	}
	if err := json.Unmarshal(data, &note); err != nil {
		return "", err
	}
	if !driverName.MatchString(note.DriverName) {
		return "", fmt.Errorf("driver name %q", note.DriverName)
	}
	return note.DriverName, nil
}

// answers returns how a socket shows that somebody may serve it; empty when nobody does.
func answers(ctx context.Context, socket string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	connection, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	switch {
	case err == nil:
		connection.Close()
		return socket + " answers"
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return ""
	}
	return fmt.Sprintf("%s: %v", socket, err)
}

package csiregistration

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// A note counts if it is whole and names a driver. That of a raw block volume lies in the directory of the plugin.
func TestClaimedDrivers(t *testing.T) {
	const uid = "0c2b7b0e-7d4b-4f0c-9a77-111111111111"
	h := hosttest.Host(t)
	h.Paths.KubeletRoot = "/var/lib/kubelet"
	for name, note := range map[string]string{
		"pods/" + uid + "/volumes/kubernetes.io~csi/good/vol_data.json":        `{"driverName":"ebs.csi.aws.com","volumeHandle":"1"}`,
		"pods/" + uid + "/volumes/kubernetes.io~csi/path/vol_data.json":        `{"driverName":"../../x","volumeHandle":"2"}`,
		"pods/" + uid + "/volumes/kubernetes.io~csi/torn/vol_data.json":        `{"driverName":"efs.csi.aws.com","volu`,
		"pods/" + uid + "/volumeDevices/kubernetes.io~csi/raw":                 "",
		"plugins/kubernetes.io/csi/volumeDevices/raw/data/vol_data.json":       `{"driverName":"raw.example.com","volumeHandle":"3"}`,
		"plugins/kubernetes.io/csi/volumeDevices/of-others/data/vol_data.json": `{"driverName":"other.example.com","volumeHandle":"4"}`,
	} {
		hosttest.WriteHostFile(t, h, "/var/lib/kubelet/"+name, note)
	}
	got := claimedDrivers(h, uid)
	slices.Sort(got)
	if diff := cmp.Diff([]string{"ebs.csi.aws.com", "raw.example.com"}, got); diff != "" {
		t.Error(diff)
	}
}

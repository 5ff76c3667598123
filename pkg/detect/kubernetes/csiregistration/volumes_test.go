package csiregistration

import (
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/kubelet"
)

func FuzzParseVolumeData(f *testing.F) {
	f.Add([]byte(`{"driverName":"ebs.csi.aws.com"}`))
	f.Add([]byte(`{"driverName":"../../x"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		name, err := parseVolumeData(data)
		if (err == nil) != kubelet.IsCSIDriverName(name) {
			t.Errorf("name %q, error %v", name, err)
		}
	})
}

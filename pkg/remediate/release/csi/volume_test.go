package csi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/volume"
)

func TestParseVolumeNote(t *testing.T) {
	for name, test := range map[string]struct{ note, volume, want string }{
		"whole":                 {noteOf("pvc-1", "v", "a.example.com"), "pvc-1", ""},
		"a name with a slash":   {noteOf("a/b", "v", "a.example.com"), "a~b", ""},
		"of another volume":     {noteOf("pvc-2", "v", "a.example.com"), "pvc-1", "for volume"},
		"no volume":             {`{"driverName":"a","volumeHandle":"v"}`, "pvc-1", "for volume"},
		"no handle":             {`{"driverName":"a","specVolID":"pvc-1"}`, "pvc-1", "no volume handle"},
		"no driver":             {`{"specVolID":"pvc-1","volumeHandle":"v"}`, "pvc-1", "driver name"},
		"a path as a driver":    {noteOf("pvc-1", "v", "../../etc"), "pvc-1", "driver name"},
		"torn":                  {`{"driverName":"a"`, "pvc-1", "unexpected end"},
		"empty":                 {"", "pvc-1", "unexpected end"},
		"a driver with a blank": {noteOf("pvc-1", "v", "a b"), "pvc-1", "driver name"},
	} {
		_, err := parseVolumeNote([]byte(test.note), test.volume)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func TestStagedAt(t *testing.T) {
	note := volumeNote{Spec: "pvc/1", Handle: "vol/1", Driver: "a.example.com"}
	const csi = "plugins/kubernetes.io/csi/"
	for name, want := range map[string]bool{
		csi + "a.example.com/" + volume.HandleSum("vol/1") + "/globalmount": true,
		csi + "A.Example.Com/" + volume.HandleSum("vol/1"):                  true,
		csi + "other/" + volume.HandleSum("vol/1") + "/vol_data.json":       true,
		"/var/lib/kubelet/" + csi + "a/" + volume.HandleSum("vol/1"):        true,
		csi + "pv/pvc~1/globalmount":                                        true,
		csi + "volumeDevices/staging/pvc~1":                                 true,
		csi + "volumeDevices/publish/pvc~1/uid":                             true,
		csi + "volumeDevices/pvc~1/dev":                                     true,
		csi + "a.example.com/" + volume.HandleSum("vol/2") + "/globalmount": false,
		csi + "pv/pvc~2/globalmount":                                        false,
		csi + "volumeDevices/staging/pvc~2":                                 false,
		csi:                                                                 false, csi + "a.example.com": false,
		"plugins/a.example.com/csi.sock": false, "": false,
	} {
		if got := stagedAt([]string{"/", name}, note); (got != "") != want {
			t.Errorf("%q: %q", name, got)
		}
	}
}

func noteOf(volume, handle, driver string) string {
	return fmt.Sprintf(`{"specVolID":%q,"volumeHandle":%q,"driverName":%q}`, volume, handle, driver)
}

package csiregistration

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/test/fakecsi"
)

// TestCSIRegistrationRecorded: the CSINode of a real node, with drivers that listen where its drivers did.
func TestCSIRegistrationRecorded(t *testing.T) {
	n := newCSINode(t)
	files := checktest.Recorded(t, "testdata/csi-registration/recorded.txtar")
	recorded := &storagev1.CSINode{}
	if err := json.Unmarshal(files["csinode.json"], recorded); err != nil {
		t.Fatal(err)
	}
	n.host.Cluster.CSINode = func(context.Context) (*storagev1.CSINode, error) { return recorded, nil }
	drivers := map[string]*fakecsi.Driver{}
	for line := range strings.Lines(string(files["plugins_registry"])) {
		name, ok := strings.CutSuffix(strings.TrimSpace(line[strings.LastIndex(line, " ")+1:]), "-reg.sock")
		if ok {
			drivers[name] = n.start(fakecsi.Options{Name: name})
		}
	}
	check := New(testCSISettings(), nil)
	expect := func(want ...string) {
		t.Helper()
		found, err := check.Run(t.Context(), n.host)
		if diff := cmp.Diff(want, checktest.Reasons(found)); diff != "" || err != nil {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
	}
	expect()
	_ = drivers[fakeName].Abandon()
	expect("csi-driver/" + fakeName + "=CSISocketStale warning")
}

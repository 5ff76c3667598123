package kinds

import (
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func TestPodOfLogs(t *testing.T) {
	want := object.Pod{Namespace: "kube-system", Name: "web-0", UID: inspecttest.Living}
	for name, ok := range map[string]bool{
		"kube-system_web-0_" + inspecttest.Living: true, "kube-system_web-0_" + inspecttest.Living + "_1": false,
		"_web-0_" + inspecttest.Living: false,
		"kube-system_web-0_nouid":      false, "lost+found": false, "": false,
	} {
		if got, is := podOfLogs(name); is != ok || ok && got != want {
			t.Errorf("%q: %+v, %t", name, got, is)
		}
	}
}

package criticaldaemonsets

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Anyone who may create pods can choose their priority class, labels and owner references: a DaemonSet decides on a
// node only in the cluster's own namespaces, or by the operator's list.
func TestTenantsDaemonSetIsNoFaultOfTheNode(t *testing.T) {
	for name, test := range map[string]struct {
		namespace string
		listed    bool
		labelled  bool // by its label instead of its priority class
		imitated  bool // no DaemonSet, but a pod that claims to belong to one
		want      finding.Severity
	}{
		"kube-system":              {namespace: "kube-system", want: finding.Fatal},
		"openshift's":              {namespace: "openshift-multus", want: finding.Fatal},
		"a tenant's":               {namespace: "tenant", want: finding.Warning},
		"a tenant's, by its label": {namespace: "tenant", labelled: true, want: finding.Warning},
		"a tenant's pod alone":     {namespace: "tenant", imitated: true, want: finding.Warning},
		"looks like kube-system":   {namespace: "kube-system2", want: finding.Warning},
		"the operator lists it":    {namespace: "tenant", listed: true, want: finding.Fatal},
		"listed and labelled":      {namespace: "tenant", listed: true, labelled: true, want: finding.Fatal},
	} {
		t.Run(name, func(t *testing.T) {
			s := DefaultSettings()
			if test.listed {
				s.DaemonSets = []string{test.namespace + "/agent"}
			}
			set := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: test.namespace, Name: "agent", UID: "u"}}
			pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: test.namespace, Name: "agent-x",
				OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "agent", UID: "u", Controller: new(true)}}}}
			pod.Spec.PriorityClassName = "system-node-critical"
			if set.Spec.Template.Spec.PriorityClassName = "system-node-critical"; test.labelled {
				set.Spec.Template.Spec.PriorityClassName, set.Labels = "", map[string]string{"nodeagent.io/critical": "true"}
			}
			sets := []appsv1.DaemonSet{set}
			if test.imitated {
				sets = nil
			}
			critical, err := criticalSets(s, sets, []corev1.Pod{pod})
			if len(critical) != 1 || err != nil {
				t.Fatal(critical, err)
			}
			if got := critical[0].found(finding.Fatal, "DaemonSetPodNotReady", "").Severity; got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

package kinds_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

const ofDriver = "kubernetes.io/csi/d.example.com^"

func (n *node) attachedTo(handles ...string) {
	n.NodeObject.Status.VolumesAttached = nil
	for _, handle := range handles {
		n.NodeObject.Status.VolumesAttached = append(n.NodeObject.Status.VolumesAttached,
			corev1.AttachedVolume{Name: corev1.UniqueVolumeName(handle)})
	}
}

// A volume that the Node lists as attached is reported once it is unused on the node, and no longer after the Node
// lacks it. The apiserver is asked once in 40 minutes, and every ten while one is unused.
func TestVolumeAttachments(t *testing.T) {
	n := newNode(t)
	n.attachedTo(ofDriver+"lost", ofDriver+"in-pod", ofDriver+"staged", "kubernetes.io/aws-ebs/vol-1")
	n.publish(living, "in-pod")
	n.stage("staged")
	i, history := n.inspector(), object.History{}
	attachments := func(minutes int) map[string]object.Verdict {
		t.Helper()
		var report object.Report
		for range minutes {
			n.After(time.Minute)
			report, history = i.Pass(t.Context(), history)
			inspecttest.NoErrors(t, report)
		}
		return verdictsByName(report, object.VolumeAttachment, func(o object.Assessment) string { return handleOf(o) })
	}
	want := map[string]object.Verdict{"lost": object.Live, "in-pod": object.Live, "staged": object.Live}
	if diff := cmp.Diff(want, attachments(1)); diff != "" {
		t.Error("at first", diff)
	}
	want["lost"] = object.Unowned
	if diff := cmp.Diff(want, attachments(11)); diff != "" {
		t.Error("after the grace", diff)
	}
	if n.Requests != 2 {
		t.Errorf("%d requests to the apiserver in 12 minutes", n.Requests)
	}
	n.attachedTo(ofDriver+"in-pod", ofDriver+"staged")
	delete(want, "lost")
	if diff := cmp.Diff(want, attachments(10)); diff != "" {
		t.Error("after it was detached", diff)
	}
	before := n.Requests
	if attachments(38); n.Requests != before {
		t.Errorf("%d requests to the apiserver while nothing is unused", n.Requests-before)
	}
	if attachments(1); n.Requests != before+1 {
		t.Errorf("%d requests after 40 minutes", n.Requests-before)
	}
}

// While a pod waits for its volumes, an attached one may be for it; if the apiserver refuses the Node, this is reported
// once, and no volume is listed.
func TestVolumeAttachmentsWaitingAndRefused(t *testing.T) {
	n := newNode(t)
	n.attachedTo(ofDriver + "coming")
	n.Kubelet[0].Status.Phase = corev1.PodPending
	n.Kubelet[0].Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	report := n.ripen(t, object.History{}, n.inspector())
	if diff := cmp.Diff(map[object.Verdict]int{object.Live: 1}, verdicts(report, object.VolumeAttachment)); diff != "" {
		t.Error(diff)
	}
	n.ClusterErr = errors.New("forbidden")
	i, history, told := n.inspector(), object.History{}, 0
	for range 30 {
		n.After(time.Minute)
		report, history = i.Pass(t.Context(), history)
		for _, failure := range report.Errors {
			if failure.What == string(object.VolumeAttachment) {
				told++
			}
		}
	}
	if told != 1 || len(verdicts(report, object.VolumeAttachment)) != 0 {
		t.Errorf("told %d times, %v", told, verdicts(report, object.VolumeAttachment))
	}
}

package kube

import (
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Any answer counts, whatever its content; a timeout does not.
func TestLastAnswer(t *testing.T) {
	server := newFakeServer(t, mute)
	client := server.client()
	if _, err := client.GetNode(within(t, 200*time.Millisecond)); err == nil {
		t.Error("a mute server answered")
	}
	if ago, ever := client.lastAnswer(); ever {
		t.Errorf("never answered, yet %s ago", ago)
	}
	server.set(refusal(http.StatusForbidden, metav1.StatusReasonForbidden))
	if _, err := client.GetNode(within(t, time.Minute)); err == nil {
		t.Error("not refused")
	}
	if ago, ever := client.lastAnswer(); !ever || ago > time.Minute {
		t.Errorf("last answer %s ago, ever: %t", ago, ever)
	}
}

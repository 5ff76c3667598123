package kube

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// forbiddenBody is the apiserver's answer when RBAC denies: k8s.io/apiserver/pkg/endpoints/handlers/responsewriters.
func forbiddenBody(message string) http.HandlerFunc {
	return text(http.StatusForbidden, "application/json", fmt.Sprintf(
		`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":%q}`, message))
}

// A request denied by RBAC is reported with the rule that would permit it.
func TestDeniedRightIsNamed(t *testing.T) {
	for message, want := range map[string]finding.Access{
		`daemonsets.apps is forbidden: User "system:serviceaccount:a:b" cannot list resource "daemonsets" in API group "apps" at the cluster scope`: {
			Lack: "the apiserver denies: list daemonsets.apps",
			Grant: `bind a ClusterRole with {apiGroups: ["apps"], resources: ["daemonsets"], verbs: ["list"]} ` +
				`to system:serviceaccount:a:b`},
		`pods is forbidden: User "u" cannot list resource "pods" in API group "" in the namespace "kube-system"`: {
			Lack: "the apiserver denies: list pods in namespace kube-system",
			Grant: `bind a Role with {apiGroups: [""], resources: ["pods"], verbs: ["list"]} to u in namespace ` +
				`kube-system`},
	} {
		server := newFakeServer(t, forbiddenBody(message))
		_, err := server.client().Cluster().DaemonSets(within(t, time.Minute))
		lack := finding.AccessOf(err)
		if lack == nil || *lack != want || !apierrors.IsForbidden(err) {
			t.Errorf("%s:\n%+v, want\n%+v (%v)", message, lack, want, err)
		}
	}
	// No rule permits a request that an admission policy refuses; and another error is not a missing right.
	for _, answer := range []http.HandlerFunc{forbiddenBody("ValidatingAdmissionPolicy 'x' denied request"),
		refusal(http.StatusInternalServerError, "InternalError")} {
		server := newFakeServer(t, answer)
		if _, err := server.client().Cluster().DaemonSets(within(t, time.Minute)); err == nil || finding.AccessOf(err) != nil {
			t.Errorf("%v", err)
		}
	}
}

func TestKubeletsDenialIsNamed(t *testing.T) {
	certificate := newTestCertificate(t, "node-a")
	answering := func(code int, body string) host.Kubelet {
		kubelet, _, paths := newFakeKubelet(t, certificate, text(code, "text/plain", body))
		file := filepath.Join(paths.KubeletRoot, "pki/kubelet.crt")
		if err := os.WriteFile(file, []byte(certificate.pem), 0o600); err != nil {
			t.Fatal(err)
		}
		return kubelet
	}
	for body, want := range map[string]string{
		"Forbidden (user=system:node:n, verb=get, resource=nodes, subresource(s)=[pods proxy])": "nodes/pods",
		"Forbidden (user=system:node:n, verb=get, resource=nodes, subresource=proxy)":           "nodes/proxy",
	} {
		_, err := answering(http.StatusForbidden, body).Pods(within(t, time.Minute))
		lack := finding.AccessOf(err)
		if lack == nil || lack.Lack != "kubelet denies: get "+want || !strings.Contains(lack.Grant, fmt.Sprintf(
			`{apiGroups: [""], resources: [%q], verbs: ["get"]} to system:node:n`, want)) {
			t.Errorf("%s: %+v (%v)", body, lack, err)
		}
	}
	_, err := answering(http.StatusUnauthorized, "Unauthorized").Pods(within(t, time.Minute))
	if lack := finding.AccessOf(err); lack == nil || lack.Lack != "kubelet does not know the agent" {
		t.Errorf("%+v (%v)", lack, err)
	}
}

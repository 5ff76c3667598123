package helm

import (
	"strings"
	"testing"
)

const traceChart = kubernetes + "/tracecenter"

func trace(t *testing.T, args ...string) (rendered string, err error) {
	t.Helper()
	out, stderr, err := helm(t, append([]string{"template", "tracecenter", traceChart, "--namespace", "nodeagent"}, args...)...)
	if err != nil {
		return stderr, err
	}
	return out, nil
}

func TestTraceTemplate(t *testing.T) {
	for file, args := range map[string][]string{
		"testdata/tracecenter.golden.yaml": {"--set", "tls.secretName=certificate"},
		"testdata/tracecenter-full.golden.yaml": {"--set", "tls.secretName=certificate,promised=90s,poolLabel=node.kubernetes.io/instance-type,excludeNamespaces={a,b}," +
			"overrides.reasons.ImageNotFound.class=system,storage.existingClaim=mine,image.pullSecrets[0]=registry," +
			"oidc.settings.issuer=https://login.example.com,oidc.settings.clientID=trace,oidc.secretName=oidc,oidc.caConfigMap=authorities," +
			"eventCenter.address=https://eventcenter.nodeagent.svc,eventCenter.cluster=main,alertmanager.address=http://alertmanager:9093," +
			"postgres.url=postgres://trace@db/trace,postgres.secretName=db,replicas=2,canary.enabled=true," +
			"tenants[0].name=red,tenants[0].namespaces={red,red-jobs},tenants[0].groups={oidc:red},tenants[0].quota.pods=100," +
			"tenants[1].name=blue,tenants[1].namespaces={blue}"},
	} {
		out, err := trace(t, args...)
		if err != nil {
			t.Fatalf("%s: %v\n%s", file, err, out)
		}
		compare(t, file, out)
	}
	if out, stderr, err := helm(t, "lint", "--strict", traceChart); err != nil {
		t.Errorf("%v\n%s%s", err, out, stderr)
	}
	out, err := trace(t, "--show-only", "templates/tls.yaml") // the chart's own certificate
	if err != nil || !strings.Contains(out, "name: tracecenter-ca") || !strings.Contains(out, "BEGIN CERTIFICATE") {
		t.Errorf("%v\n%s", err, out)
	}
}

// The chart rejects values that it does not understand.
func TestTraceRefuses(t *testing.T) {
	for set, want := range map[string]string{
		"imagee.tag=1":                  "additional properties 'imagee' not allowed",
		"promised=a minute":             "/promised",
		"keepDays=1":                    "/keepDays",
		"excludeNamespaces=a":           "/excludeNamespaces",
		"overrides.reason.X.class=user": "additional properties 'reason' not allowed",
		"replicas=2":                    "more than one needs postgres.url",
		"postgres.url=postgres://a:secret@db/trace":     "/postgres/url",
		"eventCenter.address=https://center":            "the name of this cluster",
		"alertmanager.levels.critical=Bad":              "/alertmanager/levels/critical",
		"tenants[0].name=red":                           "missing property 'namespaces'",
		"tenants[0].name=Red,tenants[0].namespaces={a}": "/tenants/0/name",
	} {
		if out, err := trace(t, "--set", set); err == nil || !strings.Contains(out, want) {
			t.Errorf("--set %s: %v, want an error with %q\n%s", set, err, want, out)
		}
	}
}

// The identity of tracecenter can change nothing: it creates only reviews, which are queries.
func TestTraceRights(t *testing.T) {
	out, err := trace(t, "--show-only", "templates/rbac.yaml")
	if err != nil {
		t.Fatal(err, out)
	}
	for _, verb := range []string{"update", "patch", "delete", "*"} {
		if strings.Contains(out, `"`+verb+`"`) {
			t.Errorf("the right to %s", verb)
		}
	}
	if strings.Count(out, `"create"`) != 2 {
		t.Errorf("rights to create besides the two reviews:\n%s", out)
	}
}

package pages_test

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/test/trace/pagestest"
)

type site struct {
	t       *testing.T
	url     string
	browser *http.Client
}

// start serves the pages, and signs a user of the cluster in.
func start(t *testing.T, namespaces map[string]bool) *site {
	t.Helper()
	served, sessions := pagestest.Serve(t, namespaces)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t, served, &http.Client{Jar: jar}}
	if status, text := s.open("/failures"); status != http.StatusOK || !strings.Contains(text, "Sign in") || strings.Contains(text, "CapacityExhausted") {
		t.Errorf("not signed in: %d %s", status, text)
	}
	code, _, err := sessions.Code(t.Context(), web.Person{Name: "ada", Cluster: "cluster", User: &web.User{Name: "ada"}})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := s.browser.PostForm(s.url+"/login", url.Values{"code": {code}})
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	return s
}

func (s *site) open(path string) (int, string) {
	s.t.Helper()
	answer, err := s.browser.Get(s.url + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func TestPages(t *testing.T) {
	s := start(t, nil)
	for path, wants := range map[string][]string{
		"/": {"<dd>Unknown</dd>", "fewer than 20", "CapacityExhausted", "No component is probed yet", "not judged yet"},
		"/failures?window=1d&reason=CapacityExhausted": {"2 misses in 1d", "/pods/default/%3Cb%3Elate", "&lt;b&gt;late", "team/gone"},
		"/failures?namespace=team":                     {"1 misses in 1h", "team/gone"},
		"/failures?window=1d":                          {`href="/failures?reason=CapacityExhausted&amp;window=1d"`},
		"/failures?reason=InitSlow":                    {"No miss is like this"},
		"/pods/team/gone":                              {"CapacityExhausted (system)", "queue and schedule, of scheduler", "<svg", "<rect", "Add nodes", "uid-team"},
		"/pods/uid-default":                            {"&lt;b&gt;late", "<rect"},
		"/pods?pod=team/gone":                          {"CapacityExhausted (system)"},
		"/pods":                                        {"Namespace/name, or UID"},
		"/terminating":                                 {"There is none."},
		"/nodes":                                       {"node-&lt;b&gt;1", `<td class="n">50</td>`, "50 points: it is not ready", "with 20 acts of each"},
		"/components":                                  {"No component is probed yet"},
		"/versions":                                    {`<th scope="row">kubelet v1.36.1</th><td>v1.36.0</td><td>mount and sandbox, image cached</td><td>gpu</td>`, "of 250", "containerd://2.1"},
		"/report":                                      {"Last 7 days", "CapacityExhausted", "There are no verdicts before", "&lt;b&gt;late", "/v1/report?format=html"},
		"/report?namespace=team":                       {"Last 7 days, namespace team", "team/gone", `href="/v1/report?format=html&amp;namespace=team&amp;week="`},
	} {
		status, text := s.open(path)
		for _, want := range wants {
			if status != http.StatusOK || !strings.Contains(text, want) {
				t.Errorf("%s: %d, no %q in %s", path, status, want, text)
			}
		}
		if strings.Contains(text, "<b>late") || strings.Contains(text, "<b>1") {
			t.Errorf("%s: a name is shown as markup", path)
		}
	}
	for path, want := range map[string]int{"/pods/none": 404, "/pods/a/b": 404, "/nothing": 404, "/failures?window=2m": 400, "/report?week=x": 400, "/v1/failures": 200} {
		if status, text := s.open(path); status != want {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// Whoever may get the pods of one namespace sees no pod of another: not by page, JSON, search, or a guessed UID.
func TestPagesOfOneNamespace(t *testing.T) {
	s := start(t, map[string]bool{"team": true})
	for path, want := range map[string]int{"/": 200, "/?namespace=team": 200, "/?namespace=default": 200, "/failures": 403, "/failures?namespace=default": 403, "/nodes": 403, "/nodes?namespace=team": 403, "/v1/nodes?namespace=team": 403, "/v1/nodes": 403,
		"/failures?namespace=team": 200, "/report": 403, "/report?namespace=default": 403, "/report?namespace=team": 200, "/terminating": 403, "/terminating?namespace=team": 200, "/pods/team/gone": 200, "/pods/uid-team": 200,
		"/pods/default/%3Cb%3Elate": 404, "/pods/uid-default": 404, "/pods?pod=uid-default": 404, "/v1/pods/uid-default": 404, "/v1/pods/uid-team": 200,
		"/v1/pods/default/%3Cb%3Elate": 403, "/v1/failures": 403, "/v1/failures?namespace=team": 200, "/v1/slis": 403, "/v1/slis?namespace=default": 403} {
		status, text := s.open(path)
		if status != want || strings.Contains(text, "0/1 nodes") && !strings.Contains(path, "team") || strings.Contains(text, "&lt;b&gt;late") && status == 200 {
			t.Errorf("%s: %d, want %d: %s", path, status, want, text)
		}
	}
}

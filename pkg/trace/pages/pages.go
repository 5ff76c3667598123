// Package pages shows the verdicts to people: the health of the cluster, failures, a pod with its waterfall, leftovers and
// components. Package web has their layout, and signing in. A person sees the pods that they may get.
package pages

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
	"github.com/nodeagent/nodeagent/pkg/web"
)

//go:embed templates
var files embed.FS

type pages struct {
	*api.Server
	*web.Site
}

// New returns the handler of all pages. Without a provider, people sign in only with codes.
func New(server *api.Server, sessions *web.Sessions, provider web.SignIn, version string) http.Handler {
	p := &pages{Server: server, Site: web.New(web.Config{Program: "tracecenter", Name: "trace center", Templates: files,
		Blocks:    []string{"templates/blocks.html"},
		Functions: functions, Sessions: sessions, Provider: provider, Log: server.Log, Now: server.Now, Version: version,
		Navigation: []web.Link{
			{Page: "board", Name: "Health", Path: "/"},
			{Page: "failures", Name: "Failures", Path: "/failures"},
			{Page: "pod", Name: "Pod", Path: "/pods"},
			{Page: "terminating", Name: "Terminating", Path: "/terminating"},
			{Page: "nodes", Name: "Nodes", Path: "/nodes"},
			{Page: "components", Name: "Components", Path: "/components"},
			{Page: "versions", Name: "Versions", Path: "/versions"},
			{Page: "report", Name: "Report", Path: "/report"},
		}})}
	mux := http.NewServeMux()
	for pattern, answer := range map[string]func(http.ResponseWriter, *http.Request, web.Session){
		"GET /{$}":                     p.Page("board", p.board),
		"GET /failures":                p.Page("failures", p.ofPods(answer("Failures", "/v1/failures", p.Failures, "namespace", "reason", "nodes", "window"))),
		"GET /pods":                    p.search,
		"GET /pods/{uid}":              p.pod,
		"GET /pods/{namespace}/{name}": p.pod,
		"GET /terminating":             p.Page("terminating", p.ofPods(answer("Terminating", "/v1/terminating", p.Terminating, "namespace"))),
		"GET /nodes":                   p.Page("nodes", p.ofCluster(answer("Nodes", "/v1/nodes", p.Nodes))),
		"GET /components":              p.Page("components", answer("Components online", "/v1/components", p.Components)),
		"GET /versions":                p.Page("versions", answer("Versions", "/v1/versions", p.Versions)),
		"GET /report":                  p.Page("report", p.ofPods(p.report)),
	} {
		mux.HandleFunc(pattern, p.SignedIn(answer))
	}
	return p.Site.Handler(mux)
}

var functions = template.FuncMap{
	"ratio":   report.Percent,
	"enough":  func() int { return sli.Enough },
	"seconds": func(s float64) string { return fmt.Sprintf("%.1f s", s) },
	"stage":   stage.Describe,
	"pod": func(namespace, name string) string {
		return "/pods/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
	},
	"query":  func(s any) string { return url.QueryEscape(fmt.Sprint(s)) },
	"levels": func(l any) string { return strings.ToLower(fmt.Sprint(l)) },
	"since":  func(d time.Duration) string { return d.Round(time.Second).String() },
	"changed": func(q url.Values, name string, value any) template.URL {
		return template.URL(web.With(q, name, fmt.Sprint(value)).Encode()) //nolint:gosec // encoded
	},
}

// ofPods is for those who may get the pods of the namespace in the query; without one, of all namespaces. Others may choose
// another namespace.
func (p *pages) ofPods(next web.Content) web.Content {
	return func(r *http.Request, who web.Session) (web.View, error) {
		if err := p.MayRead(r.Context(), who.Identity(), r.URL.Query().Get("namespace")); err != nil {
			refusal := web.RefusalOf(err, http.StatusForbidden)
			return web.View{Title: "No right to read this", Data: shown{Answer: refusal, Filter: fields(r, "namespace")}}, refusal
		}
		return next(r, who)
	}
}

// ofCluster is for those who may get the pods of all namespaces.
func (p *pages) ofCluster(next web.Content) web.Content {
	return func(r *http.Request, who web.Session) (web.View, error) {
		if err := p.MayRead(r.Context(), who.Identity(), ""); err != nil {
			return web.View{}, web.RefusalOf(err, http.StatusForbidden)
		}
		return next(r, who)
	}
}

// shown is the answer to a query.
type shown struct {
	Answer any
	Filter []web.Field // of the query
	Query  url.Values
}

// answer shows the answer to a question, whose JSON is at a path. filter are the parameters that a person may change.
func answer[T any](title, path string, ask func(context.Context, url.Values) (T, error), filter ...string) web.Content {
	return func(r *http.Request, _ web.Session) (web.View, error) {
		q := r.URL.Query()
		answer, err := ask(r.Context(), q)
		if err != nil {
			return web.View{}, err
		}
		return web.View{Title: title, JSON: path + "?" + q.Encode(), Data: shown{answer, fields(r, filter...), q}}, nil
	}
}

func fields(r *http.Request, names ...string) []web.Field {
	return web.Fields(r.URL.Query(), map[string][]string{"window": {"5m", "1h", "1d", "7d"}}, names...)
}

// board is the first page. Health and components name no pods; the rest needs a right.
func (p *pages) board(r *http.Request, who web.Session) (web.View, error) {
	namespace := r.URL.Query().Get("namespace")
	components, err := p.Components(r.Context(), nil)
	v := map[string]any{"Health": p.Health(), "Components": components, "Namespace": namespace, "Filter": fields(r, "namespace")}
	if p.MayRead(r.Context(), who.Identity(), namespace) == nil {
		var windows []api.SLIs
		for _, window := range []string{"5m", "1h", "1d"} {
			answer, failed := p.SLIs(r.Context(), url.Values{"window": {window}, "namespace": {namespace}})
			windows, err = append(windows, answer), cmp.Or(err, failed)
		}
		failures, failed := p.Failures(r.Context(), url.Values{"namespace": {namespace}})
		v["Windows"], v["Failures"], err = windows, failures, cmp.Or(err, failed)
	}
	if err != nil {
		return web.View{}, err
	}
	return web.View{Title: "Health of the cluster", JSON: "/v1/health", Data: v}, nil
}

func (p *pages) report(r *http.Request, _ web.Session) (web.View, error) {
	q := r.URL.Query()
	made, err := p.Report(r.Context(), q.Get("week"), q.Get("namespace"))
	if err != nil {
		return web.View{}, err
	}
	content, err := made.Page()
	asked := url.Values{"week": {made.Week}, "namespace": {made.Namespace}}
	v := shown{map[string]any{"Content": content, "Earlier": report.WeekOf(made.From.Add(-24 * time.Hour))}, fields(r, "namespace", "week"), asked}
	return web.View{Title: made.Title(), JSON: "/v1/report?" + asked.Encode(), Data: v}, err
}

// search leads to the page of a pod.
func (p *pages) search(w http.ResponseWriter, r *http.Request, _ web.Session) {
	text := strings.Trim(r.URL.Query().Get("pod"), "/ ")
	if text == "" {
		p.Show(w, r, http.StatusOK, "pod", web.View{Title: "Pod", Data: shown{Answer: api.Pod{}}})
		return
	}
	parts := strings.Split(text, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	http.Redirect(w, r, "/pods/"+strings.Join(parts[:min(len(parts), 2)], "/"), http.StatusSeeOther) //nolint:gosec // a page of this site: each part is escaped
}

func (p *pages) pod(w http.ResponseWriter, r *http.Request, who web.Session) {
	uid, namespace, name := r.PathValue("uid"), r.PathValue("namespace"), r.PathValue("name")
	query := cmp.Or(uid, namespace+"/"+name)
	pod, err := p.Pod(r.Context(), uid, namespace, name)
	if err != nil {
		p.Fail(w, r, err)
		return
	}
	if len(pod.Acts) > 0 {
		namespace, name = pod.Acts[0].Namespace, pod.Acts[0].Name
	}
	title, status := "Pod "+namespace+"/"+name, http.StatusOK
	if namespace == "" || p.MayRead(r.Context(), who.Identity(), namespace) != nil {
		pod = api.Pod{} // whether it exists is not told
	}
	if len(pod.Acts) == 0 {
		title, status = "Pod "+query, http.StatusNotFound
	}
	p.Show(w, r, status, "pod", web.View{Title: title, JSON: "/v1" + r.URL.EscapedPath(), Data: shown{Answer: pod, Query: url.Values{"pod": {query}}}})
}

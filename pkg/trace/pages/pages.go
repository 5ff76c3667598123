// Package pages shows the verdicts to people: the health of the cluster, failures, a pod with its waterfall, leftovers and
// components. Package web has their layout, and signing in. A person sees the pods that they may get.
package pages

import (
	"embed"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// Config is the configuration of the pages.
type Config struct {
	Server   *api.Server
	Sessions *web.Sessions
	Provider web.SignIn // nil: people sign in only with codes
	Log      *slog.Logger
	Version  string
}

//go:embed templates
var files embed.FS

type pages struct {
	*api.Server
	*web.Site
	log *slog.Logger
}

// New returns the handler of all pages.
func New(c Config) http.Handler {
	p := &pages{Server: c.Server, log: c.Log, Site: web.New(web.Config{Program: "tracecenter", Name: "trace center", Templates: files,
		Blocks:    []string{"templates/blocks.html"},
		Functions: functions, Sessions: c.Sessions, Provider: c.Provider, Log: c.Log, Now: c.Server.Now, Version: c.Version,
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
		"GET /{$}":                     p.board,
		"GET /failures":                p.failures,
		"GET /pods":                    p.search,
		"GET /pods/{uid}":              p.pod,
		"GET /pods/{namespace}/{name}": p.pod,
		"GET /terminating":             p.terminating,
		"GET /nodes":                   p.ofCluster(page(p, "nodes", "Nodes", "/v1/nodes", p.Nodes)),
		"GET /components":              page(p, "components", "Components online", "/v1/components?window=1d", p.Components),
		"GET /versions":                page(p, "versions", "Versions", "/v1/versions", p.Versions),
		"GET /report":                  p.report,
	} {
		mux.HandleFunc(pattern, p.SignedIn(answer))
	}
	return p.Site.Handler(mux)
}

var functions = template.FuncMap{
	"ratio": func(r *float64) string {
		if r == nil {
			return fmt.Sprintf("fewer than %d", sli.Enough)
		}
		return fmt.Sprintf("%.2f %%", 100**r)
	},
	"enough":  func() int { return sli.Enough },
	"seconds": func(s float64) string { return fmt.Sprintf("%.1f s", s) },
	"stage":   stage.Describe,
	"names":   names,
	"pod": func(namespace, name string) string {
		return "/pods/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
	},
	"query":  func(s string) string { return url.QueryEscape(s) },
	"chart":  chart,
	"levels": func(l any) string { return strings.ToLower(fmt.Sprint(l)) },
	"since":  func(d time.Duration) string { return d.Round(time.Second).String() },
}

// names lists the most frequent names with their numbers.
func names(tops sli.Tops) string {
	var parts []string
	for _, t := range tops {
		parts = append(parts, fmt.Sprintf("%s (%d)", t.Name, t.N))
	}
	return strings.Join(parts, ", ")
}

// permitted reports whether a person may get the pods of the namespace in the query; without one, of all namespaces.
// If not, it answers with a page that says so.
func (p *pages) permitted(w http.ResponseWriter, r *http.Request, who web.Session) bool {
	err := p.MayRead(r.Context(), who.Identity(), r.URL.Query().Get("namespace"))
	if err == nil {
		return true
	}
	refusal := web.RefusalOf(err, http.StatusForbidden)
	p.Show(w, r, refusal.Status, "denied", web.View{Title: "No right to read this", Data: denied{refusal.Reason, fields(r)}})
	return false
}

type denied struct {
	Reason string
	Filter []web.Field
}

func fields(r *http.Request, more ...string) []web.Field {
	return web.Fields(r.URL.Query(), map[string][]string{"window": {"5m", "1h", "1d", "7d"}}, append([]string{"namespace"}, more...)...)
}

func (p *pages) failures(w http.ResponseWriter, r *http.Request, who web.Session) {
	if !p.permitted(w, r, who) {
		return
	}
	answer, err := p.Failures(r.Context(), r.URL.Query())
	if err != nil {
		p.fails(w, r, err)
		return
	}
	p.Show(w, r, http.StatusOK, "failures", web.View{Title: "Failures", JSON: "/v1/failures?" + r.URL.RawQuery, Data: failuresView{answer,
		fields(r, "reason", "nodes", "window"), web.With(r.URL.Query(), "reason", "").Encode(), r.URL.Query().Get("reason")}})
}

type failuresView struct {
	api.Failures
	Filter []web.Field
	Query  string // without the reason
	Reason string
}

// search leads to the page of a pod.
func (p *pages) search(w http.ResponseWriter, r *http.Request, _ web.Session) {
	text := strings.Trim(r.URL.Query().Get("pod"), "/ ")
	if text == "" {
		p.Show(w, r, http.StatusOK, "pod", web.View{Title: "Pod", Data: podView{}})
		return
	}
	parts := strings.Split(text, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	http.Redirect(w, r, "/pods/"+strings.Join(parts[:min(len(parts), 2)], "/"), http.StatusSeeOther) //nolint:gosec // a page of this site: each part is escaped
}

type podView struct {
	api.Pod
	Query string
}

func (p *pages) pod(w http.ResponseWriter, r *http.Request, who web.Session) {
	uid, namespace, name := r.PathValue("uid"), r.PathValue("namespace"), r.PathValue("name")
	pod, err := p.Pod(r.Context(), uid, namespace, name)
	if err != nil {
		p.fails(w, r, err)
		return
	}
	if len(pod.Acts) > 0 {
		namespace = pod.Acts[0].Namespace
	}
	if namespace == "" || p.MayRead(r.Context(), who.Identity(), namespace) != nil {
		pod = api.Pod{} // whether it exists is not told
	}
	query, title, status := uid, "Pod "+uid, http.StatusOK
	if uid == "" {
		query = namespace + "/" + name
		title = "Pod " + query
	}
	if len(pod.Acts) == 0 {
		status = http.StatusNotFound
	} else {
		title = fmt.Sprintf("Pod %s/%s", pod.Acts[0].Namespace, pod.Acts[0].Name)
	}
	p.Show(w, r, status, "pod", web.View{Title: title, JSON: "/v1" + r.URL.EscapedPath(), Data: podView{pod, query}})
}

type terminatingView struct {
	Pods   []follow.Terminating
	Filter []web.Field
}

func (p *pages) terminating(w http.ResponseWriter, r *http.Request, who web.Session) {
	if !p.permitted(w, r, who) {
		return
	}
	pods, err := p.Terminating(r.Context(), r.URL.Query())
	if err != nil {
		p.fails(w, r, err)
		return
	}
	p.Show(w, r, http.StatusOK, "terminating", web.View{Title: "Terminating", JSON: "/v1/terminating?" + r.URL.RawQuery, Data: terminatingView{pods, fields(r)}})
}

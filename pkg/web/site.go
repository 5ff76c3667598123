// Package web has the parts of a program's pages that do not depend on its subject: the layout, signing in with a code
// or at an identity provider, sessions, readers' and operators' rights, and the program's own token. Pages are rendered
// by the program, and need neither JavaScript nor other servers. Texts of others are shown as text: html/template
// escapes them, and the Content-Security-Policy permits no script except the program's own file.
package web

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/web/share"
)

// Config is the configuration of a site.
type Config struct {
	Program string // of the command line: eventcenter
	Name    string // for people: event center

	// Templates are files *.html, each with a page: it defines "content". Those of Blocks are parts that pages share.
	Templates  fs.FS
	Blocks     []string
	Functions  template.FuncMap // beside Functions of this package
	Navigation []Link

	Sessions *Sessions
	Provider SignIn // nil: people sign in only with codes
	Log      *slog.Logger
	Now      func() time.Time
	Version  string
}

// Link is an entry of the navigation.
type Link struct {
	Page string // whose entry it is
	Name string
	Path string
}

// SignIn is another way to sign in besides codes: at an identity provider.
type SignIn interface {
	// Start redirects a browser there. next is the page to open afterwards.
	Start(w http.ResponseWriter, r *http.Request, next string) error
	// Finish returns the returning person, whether as an operator, and the page to open. An error without Refused is a
	// failure of the provider or of the connection to it.
	Finish(w http.ResponseWriter, r *http.Request) (name string, operator bool, next string, err error)
	// Name is the provider's name, for people.
	Name() string
}

//go:embed templates assets
var files embed.FS

// Policy permits only the site's own style and script, and forms to itself.
const Policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Site shows pages to people who are signed in.
type Site struct {
	Config
	templates map[string]*template.Template
}

// View is the data of a page. Show sets the fields below Said.
type View struct {
	Title  string
	JSON   string // where its data is
	Data   any
	Notice string // the result of the last action

	Page       string // its place in the navigation
	Path       string // of this page, with its query
	Who        string
	Form       string // see Session
	Operator   bool
	Now        time.Time
	Version    string
	Site       string
	Program    string
	Navigation []Link
}

// New returns the site of a program. It panics if a template is wrong.
func New(c Config) *Site {
	s := &Site{Config: c, templates: map[string]*template.Template{}}
	base := template.Must(template.New("base").Funcs(Functions).Funcs(c.Functions).ParseFS(files, "templates/base.html"))
	if len(c.Blocks) > 0 {
		template.Must(base.ParseFS(c.Templates, c.Blocks...))
	}
	s.parse(base, files, "templates/login.html", "templates/message.html", "templates/welcome.html")
	names, _ := fs.Glob(c.Templates, "templates/*.html") // the pattern is right
	s.parse(base, c.Templates, names...)
	return s
}

func (s *Site) parse(base *template.Template, from fs.FS, names ...string) {
	for _, name := range names {
		page := template.Must(template.Must(base.Clone()).ParseFS(from, name))
		s.templates[strings.TrimSuffix(path.Base(name), ".html")] = page
	}
}

// Handler adds to a program's pages those of signing in and a page for addresses without one, and protects all.
func (s *Site) Handler(mux *http.ServeMux) http.Handler {
	mux.HandleFunc("GET /login", s.loginForm)
	mux.HandleFunc("POST /login", s.login)
	mux.HandleFunc("POST /logout", s.SignedIn(s.logout))
	if s.Provider != nil {
		mux.HandleFunc("GET /login/start", s.start)
		mux.HandleFunc("GET /login/callback", s.finish)
	}
	static := http.FileServerFS(files)
	mux.HandleFunc("GET /assets/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private, max-age=3600")
		static.ServeHTTP(w, r)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.Message(w, r, http.StatusNotFound, "There is no such page.")
	})
	return secured(http.NewCrossOriginProtection().Handler(mux))
}

func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", Policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
		next.ServeHTTP(w, r)
	})
}

// SignedIn serves people who are signed in, and lets others sign in.
func (s *Site) SignedIn(answer func(http.ResponseWriter, *http.Request, Session)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, err := s.Sessions.of(r)
		if err != nil && !errors.Is(err, errNoSession) {
			if !hasLeft(r) {
				s.Log.Error("read a session failed", "err", err)
			}
			s.Message(w, r, http.StatusServiceUnavailable, "Who is signed in cannot be read now: try again.")
			return
		}
		if err != nil {
			http.Redirect(w, r, "/login?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
			return
		}
		share.Identified(r)
		if r.Method == http.MethodPost && !who.permits(r.PostFormValue("form")) {
			s.Message(w, r, http.StatusForbidden, "This form is not of this session. Open the page again.")
			return
		}
		answer(w, r, who)
	}
}

// Operators is SignedIn for operators only: readers can change no state. denied tells readers what is not for them.
func (s *Site) Operators(denied string, answer func(http.ResponseWriter, *http.Request, Session)) http.HandlerFunc {
	return s.SignedIn(func(w http.ResponseWriter, r *http.Request, who Session) {
		if !who.Operator {
			s.Message(w, r, http.StatusForbidden, denied)
			return
		}
		answer(w, r, who)
	})
}

// Show renders a page completely before it sends the first byte. name is that of the page's file, without its ending.
func (s *Site) Show(w http.ResponseWriter, r *http.Request, status int, name string, v View) {
	v.Path, v.Page, v.Now, v.Version = r.URL.RequestURI(), name, s.Now(), s.Version
	v.Site, v.Program, v.Navigation = s.Name, s.Program, s.Navigation
	if who, err := s.Sessions.of(r); err == nil {
		v.Who, v.Form, v.Operator = who.Name, who.Form, who.Operator
	}
	var page bytes.Buffer
	if err := s.templates[name].ExecuteTemplate(&page, "base", v); err != nil {
		s.Log.Error("render a page failed", "page", name, "err", err)
		http.Error(w, "this page cannot be rendered; the log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = page.WriteTo(w)
}

// Content makes the content of a page, or the error instead: the page shows the reason of a Refusal, and the log any
// other error.
type Content func(*http.Request, Session) (View, error)

// Page shows a content on the page of this name. The page "denied" shows the data that comes with a Refusal.
func (s *Site) Page(name string, content Content) func(http.ResponseWriter, *http.Request, Session) {
	return func(w http.ResponseWriter, r *http.Request, who Session) {
		v, err := content(r, who)
		switch refusal, ok := errors.AsType[*Refusal](err); {
		case ok && v.Data != nil:
			s.Show(w, r, refusal.Status, "denied", v)
		case err != nil:
			s.Fail(w, r, err)
		default:
			s.Show(w, r, http.StatusOK, name, v)
		}
	}
}

// Fail shows that a page has no content, and the reason if it is that of a Refusal.
func (s *Site) Fail(w http.ResponseWriter, r *http.Request, err error) {
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		s.Message(w, r, refusal.Status, refusal.Reason)
		return
	}
	if !hasLeft(r) {
		s.Log.Error("show a page failed", "path", r.URL.Path, "err", err)
	}
	s.Message(w, r, http.StatusServiceUnavailable, "This cannot be read now: try again.")
}

// Message shows a page with one sentence.
func (s *Site) Message(w http.ResponseWriter, r *http.Request, status int, text string) {
	s.Show(w, r, status, "message", View{Title: http.StatusText(status), Data: text})
}

// Next returns the page of this site in a text, or the first page.
func Next(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || len(text) < 2 || text[0] != '/' ||
		text[1] == '/' || text[1] == '\\' {
		return "/"
	}
	return u.RequestURI()
}

// hasLeft reports whether the client has gone. A request whose time is up still has one.
func hasLeft(r *http.Request) bool { return errors.Is(r.Context().Err(), context.Canceled) }

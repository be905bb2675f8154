// Package browser tests the page of `kubectl ovsdn dashboard` in a headless Chromium, against a fake API server. It is a module of its own, so that the product's
// module does not have the packages that drive a browser.
package browser

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// limit is that of one test; the slowest waits for the page's backoff after an outage.
const limit = 3 * time.Minute

// startLimit is that of the start of Chromium, and of the dashboard.
const startLimit = time.Minute

// screenshotsVariable names a directory for TestScreenshots.
const screenshotsVariable = "OVSDN_SCREENSHOTS"

// chromium returns the path of the browser, and skips the test without one.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv(screenshotsVariable) != "" {
		t.Fatal("neither chromium nor chromium-browser is in PATH; run make test-browser, which installs it")
	}
	t.Skip("needs chromium or chromium-browser in PATH; make test-browser installs it")
	return ""
}

// tab is a page of the browser.
type tab struct {
	*testing.T
	ctx context.Context
	url *url.URL

	mu    sync.Mutex
	wrong []string // what no page may do: dialogs, exceptions, requests to other hosts, violations of its policy
}

// open opens the dashboard. At the end of the test it asserts that the page did nothing wrong.
func open(t *testing.T, api string) *tab {
	t.Helper()
	path := chromium(t)
	address, err := url.Parse(dashboard(t, api))
	if err != nil {
		t.Fatal(err)
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WindowSize(1280, 900))
	allocator, cancelAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancelAllocator)
	browser, cancelTab := chromedp.NewContext(allocator)
	t.Cleanup(cancelTab)
	ctx, cancelTimeout := context.WithTimeout(browser, startLimit+limit)
	t.Cleanup(cancelTimeout)
	b := &tab{T: t, ctx: ctx, url: address}
	deadline := time.AfterFunc(startLimit, cancelTab)
	err = chromedp.Listen(browser, b.observe) // starts the browser, which a context with a deadline would end later
	deadline.Stop()
	if err != nil {
		t.Fatalf("start %s, for %v at most: %v", path, startLimit, err)
	}
	b.do(chromedp.Navigate(address.String()))
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, text := range b.wrong {
			t.Errorf("the page: %s", text)
		}
	})
	return b
}

func (b *tab) observe(event any) {
	text := ""
	switch e := event.(type) {
	case *page.EventJavascriptDialogOpening:
		text = "opened a dialog: " + e.Message
		go func() {
			_, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
		}()
	case *runtime.EventExceptionThrown:
		text = "threw " + (&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error()
	case *log.EventEntryAdded:
		if e.Entry.Source == log.EntrySourceSecurity {
			text = e.Entry.Text
		}
	case *network.EventRequestWillBeSent:
		if to, err := url.Parse(e.Request.URL); err != nil || to.Host != b.url.Host {
			text = "sent a request to " + e.Request.URL
		}
	}
	if text != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.wrong = append(b.wrong, text)
	}
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

// eventually waits until an expression of JavaScript is true. chromedp.Poll compiles a string in the page, which the page's policy refuses.
func (b *tab) eventually(expression string) {
	b.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit / 2); time.Now().Before(deadline); <-tick.C {
		if b.is(expression) {
			return
		}
	}
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.querySelector("main").innerText.slice(0, 2000)`))
	if err != nil {
		b.Fatal(err)
	}
	b.Fatalf("%s: not true after %v; the page shows:\n%s", expression, limit/2, text)
}

// is reports whether an expression of JavaScript is true.
func (b *tab) is(expression string) bool {
	b.Helper()
	result, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](expression))
	if err != nil {
		b.Fatalf("%s: %v", expression, err)
	}
	return result
}

func (b *tab) click(selector string) {
	b.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector)))
}

// visit shows a view.
func (b *tab) visit(view string) {
	b.Helper()
	b.do(chromedp.Click(chromedp.CSS(fmt.Sprintf(`nav a[href="#%s"]`, view))), chromedp.WaitVisible(chromedp.CSS("#view-"+view)))
}

// fill replaces the text of a field, as a user does.
func (b *tab) fill(selector, text string) {
	b.Helper()
	b.is(fmt.Sprintf(`document.querySelector(%q).value = ""; true`, selector)) // chromedp.SetValue sets no empty text
	b.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// chooseNode reads the flows of a node that is typed.
func (b *tab) chooseNode(name string) {
	b.Helper()
	b.fill(`#flows-form [name=node]`, name)
	b.click(`#flows-form button[type=submit]`)
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// maxListObject is the maximum bytes of an object in a list: etcd accepts 1.5 MiB, and JSON has up to six bytes for one of them, such as \u0001.
const maxListObject = 16 << 20

// names are the objects of a list: all that the page needs of them. The objects themselves may have secrets, in annotations.
type names struct {
	Items     []name `json:"items"`
	Continue  string `json:"continue,omitempty"`
	Remaining int64  `json:"remaining"` // number of those behind this page, if the API server reports it
}

type name struct {
	Name string  `json:"name"`
	VNID *uint32 `json:"vnid,omitempty"` // of a NetNamespace
}

func (d *dashboard) namespaces(w http.ResponseWriter, r *http.Request) error {
	return d.metadata(w, r, "/api/v1/namespaces")
}

func (d *dashboard) pods(w http.ResponseWriter, r *http.Request) error {
	namespace, err := namespaceOf(r)
	if err != nil {
		return err
	}
	return d.metadata(w, r, "/api/v1/namespaces/"+namespace+"/pods")
}

// objectName is the part of an object that metadata decodes.
type objectName struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
}

// metadata answers with the names of a list, of which it reads only the metadata.
func (d *dashboard) metadata(w http.ResponseWriter, r *http.Request, path string) error {
	request := d.api.Get().AbsPath(path).SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
	return writeNames(w, r, request, func(o *objectName) name { return name{Name: o.Metadata.Name} })
}

func (d *dashboard) netNamespaces(w http.ResponseWriter, r *http.Request) error {
	request := d.api.Get().AbsPath("/apis/network.openshift.io/v1/netnamespaces").SetHeader("Accept", "application/json")
	return writeNames(w, r, request, func(o *networkv1.NetNamespace) name {
		vnid := uint32(vnidOf(*o))
		return name{Name: o.Name, VNID: &vnid}
	})
}

// writeNames answers with a page of a list.
func writeNames[T any](w http.ResponseWriter, r *http.Request, request *rest.Request, nameOf func(*T) name) error {
	if err := addPage(request, r); err != nil {
		return err
	}
	body, err := request.Stream(r.Context())
	if err != nil {
		return err
	}
	defer body.Close()
	page := &names{Items: []name{}}
	if err := decodeNames(page, body, maxListObject, nameOf); err != nil {
		return &requestError{http.StatusBadGateway, "decode the answer of the API server: " + err.Error()}
	}
	writeAnswer(w, http.StatusOK, page)
	return nil
}

// errNotList is the error of JSON of another form.
var errNotList = errors.New("it is not a list of objects")

// decodeNames decodes a list object by object, so that it takes no more memory than the largest one: objects of tenants have annotations of any size. An object
// of more than limit bytes is an error.
func decodeNames[T any](page *names, body io.Reader, limit int64, nameOf func(*T) name) error {
	in := &listReader{r: body, limit: limit, end: limit}
	d := json.NewDecoder(in)
	if err := expect(d, '{'); err != nil {
		return err
	}
	for in.allow(d); d.More(); in.allow(d) {
		key, err := d.Token()
		if err != nil {
			return err
		}
		switch key {
		case "metadata":
			var meta metav1.ListMeta
			err = d.Decode(&meta)
			page.Continue = meta.Continue
			if meta.RemainingItemCount != nil {
				page.Remaining = *meta.RemainingItemCount
			}
		case "items":
			err = decodeItems(page, d, in, nameOf)
		default:
			err = d.Decode(new(json.RawMessage))
		}
		if err != nil {
			return err
		}
	}
	return expect(d, '}')
}

func decodeItems[T any](page *names, d *json.Decoder, in *listReader, nameOf func(*T) name) error {
	start, err := d.Token()
	if err != nil || start == nil { // null is a list without objects
		return err
	}
	if start != json.Delim('[') {
		return errNotList
	}
	for in.allow(d); d.More(); in.allow(d) {
		var o T
		if err := d.Decode(&o); err != nil {
			return err
		}
		page.Items = append(page.Items, nameOf(&o))
	}
	return expect(d, ']')
}

// expect reads a delimiter.
func expect(d *json.Decoder, want json.Delim) error {
	got, err := d.Token()
	if err == nil && got != want {
		err = errNotList
	}
	return err
}

// listReader reads a list for a decoder, and fails behind limit bytes of an object.
type listReader struct {
	r     io.Reader
	limit int64
	read  int64 // bytes
	end   int64 // bytes that may be read before allow is called again
}

// allow lets the decoder read the next object.
func (l *listReader) allow(d *json.Decoder) { l.end = d.InputOffset() + l.limit }

// Read implements io.Reader. The decoder does not read behind the end of a list, so the end of the body is an error.
func (l *listReader) Read(p []byte) (int, error) {
	if l.read >= l.end {
		return 0, fmt.Errorf("an object of the list is larger than %d KiB", l.limit>>10)
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.end-l.read)])
	l.read += int64(n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

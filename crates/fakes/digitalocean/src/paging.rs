//! Paging: 20 entries by default, 200 at most, with absolute links to adjacent pages.

use serde_json::{Map, Value, json};

use crate::request::{Request, encode};
use crate::response::ApiResponse;

const DEFAULT_SIZE: usize = 20;
const MAX_SIZE: usize = 200;

/// One page of `all`, as a response with the list under the key `root`.
pub(crate) fn page(request: &Request, root: &str, all: Vec<Value>) -> ApiResponse {
    let number = |name| request.param(name).and_then(|text| text.parse::<usize>().ok());
    let page = number("page").unwrap_or(1).max(1);
    let size = number("per_page").filter(|size| *size > 0).unwrap_or(DEFAULT_SIZE).min(MAX_SIZE);
    let total = all.len();
    let shown: Vec<Value> = all.into_iter().skip((page - 1).saturating_mul(size)).take(size).collect();
    let last = total.div_ceil(size).max(1);
    let mut pages = Map::new();
    let mut link = |name: &str, to: usize| pages.insert(name.to_owned(), json!(link_to(request, to)));
    if page > 1 {
        link("first", 1);
        link("prev", page - 1);
    }
    if page < last {
        link("next", page + 1);
        link("last", last);
    }
    let links = if pages.is_empty() { json!({}) } else { json!({ "pages": pages }) };
    ApiResponse::ok(json!({ root: shown, "links": links, "meta": { "total": total } }))
}

/// The same request for another page.
fn link_to(request: &Request, page: usize) -> String {
    let others = request.pairs().into_iter().filter(|(name, _)| name != "page");
    let query: Vec<String> = std::iter::once(("page".to_owned(), page.to_string()))
        .chain(others)
        .map(|(name, value)| format!("{}={}", encode(&name), encode(&value)))
        .collect();
    format!("{}{}?{}", request.base, request.path, query.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(query: &str, total: usize) -> Value {
        let request = Request {
            path: "/v2/volumes".into(),
            query: query.into(),
            base: "http://h:1".into(),
            ..Request::default()
        };
        page(&request, "volumes", (0..total).map(|i| json!(i)).collect()).body.unwrap()
    }

    /// (query, total, first shown, how many, links)
    #[test]
    fn pages_have_items_and_links() {
        let table: &[(&str, usize, Option<u64>, usize, &str)] = &[
            ("", 0, None, 0, ""),
            ("", 20, Some(0), 20, ""),
            ("", 21, Some(0), 20, "next=2 last=2"),
            ("page=2", 21, Some(20), 1, "first=1 prev=1"),
            ("page=2&per_page=5", 21, Some(5), 5, "first=1 prev=1 next=3 last=5"),
            ("page=5&per_page=5", 21, Some(20), 1, "first=1 prev=4"),
            ("page=9&per_page=5", 21, None, 0, "first=1 prev=8"),
            ("per_page=1000", 300, Some(0), 200, "next=2 last=2"),
            ("per_page=0&page=0", 21, Some(0), 20, "next=2 last=2"),
            ("page=x", 1, Some(0), 1, ""),
        ];
        for (query, total, first, shown, links) in table {
            let body = page_of(query, *total);
            let list = body["volumes"].as_array().unwrap();
            assert_eq!(list.first().and_then(Value::as_u64), *first, "{query}");
            assert_eq!(list.len(), *shown, "{query}");
            assert_eq!(body["meta"]["total"], json!(total));
            let pages = &body["links"]["pages"];
            let mut found = Vec::new();
            for name in ["first", "prev", "next", "last"] {
                if let Some(url) = pages[name].as_str() {
                    let page = url.strip_prefix("http://h:1/v2/volumes?page=").unwrap();
                    found.push(format!("{name}={}", page.split('&').next().unwrap()));
                }
            }
            assert_eq!(found.join(" "), *links, "{query}");
            assert_eq!(body["links"] == json!({}), links.is_empty(), "{query}");
        }
    }

    #[test]
    fn links_keep_the_rest_of_the_query() {
        let body = page_of("name=a%20b&page=1&per_page=1", 2);
        assert_eq!(body["links"]["pages"]["next"], "http://h:1/v2/volumes?page=2&name=a%20b&per_page=1");
    }
}

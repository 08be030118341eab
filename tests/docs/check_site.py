#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens every page of the documentation's site in a browser without a window.

    ./run docs --check

It needs Debian's packages chromium, chromium-driver and python3-selenium. It checks that

- links lead to files and anchors that exist, also those of the navigation tree and of search results;
- pictures are drawn, and scripts report no errors;
- the navigation tree lists the Markdown pages in their order;
- each block of code of a Markdown page is there as it was written, and highlighted in C++, Python, sh and CMake;
- no page is wider than a narrow window;
- a search has results, and the first one opens.

It prints external links, which it does not follow.
"""
import argparse
import collections
import html
import os
import pathlib
import re
import shutil
import sys
import urllib.parse

from selenium import webdriver
from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions
from selenium.webdriver.support.wait import WebDriverWait

HIGHLIGHTED = ("cpp", "python", "sh", "cmake")
SEARCHES = ("TPUEmbedding", "Adagrad", "Checkpoints")
NARROW = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
TIMEOUT = 20  # seconds, for what scripts of a page draw

# What a page has. href and src are as the page has them, so that they do not depend on where the site is.
READ_PAGE = """
const all = (selector) => [...document.querySelectorAll(selector)];
return {
  title: document.title,
  links: all("a[href], area[href]").map((link) => link.getAttribute("href")),
  anchors: all("[id], a[name]").flatMap((element) => [element.id, element.getAttribute("name")]),
  pictures: all("img, object").map((picture) => [
    picture.getAttribute("src") || picture.getAttribute("data"), picture.naturalWidth || 0]),
  code: all(".textblock .fragment").map((block) => ({
    text: block.matches("pre") ? block.textContent
      : [...block.querySelectorAll(":scope > .line")].map((line) => line.textContent).join("\\n"),
    spans: block.querySelectorAll("span[class], a.code").length})),
};
"""


class Checker:
    def __init__(self, site, root, browser):
        self.site = site
        self.root = root
        self.browser = browser
        self.problems = []
        self.pages = {}  # what READ_PAGE returned, by the page's path in the site
        self.external = collections.Counter()

    def problem(self, page, text):
        self.problems.append(f"{page}: {text}")

    def open(self, page):
        self.browser.get((self.site / page).as_uri())

    def report_errors_of_scripts(self, page):
        for entry in self.browser.get_log("browser"):
            if entry["level"] == "SEVERE":
                self.problem(page, f"the console has an error: {entry['message']}")

    def read_pages(self):
        for path in sorted(self.site.rglob("*.html")):
            page = path.relative_to(self.site).as_posix()
            self.open(page)
            self.pages[page] = self.browser.execute_script(READ_PAGE)
            self.report_errors_of_scripts(page)
            for source, width in self.pages[page]["pictures"]:
                if width == 0:
                    self.problem(page, f"the picture {source} is not drawn.")

    def check_link(self, page, link):
        parts = urllib.parse.urlsplit(link)
        if parts.scheme in ("http", "https"):
            self.external[link] += 1
            return
        if parts.scheme == "javascript":
            return
        if parts.scheme:
            self.problem(page, f"links to {link}, but only relative and http(s) links work everywhere.")
            return
        target = page
        if parts.path:
            target = os.path.normpath(os.path.join(os.path.dirname(page), urllib.parse.unquote(parts.path)))
        if target not in self.pages:
            if not (self.site / target).is_file():
                self.problem(page, f"links to {link}, but there is no such file.")
        elif parts.fragment and urllib.parse.unquote(parts.fragment) not in self.pages[target]["anchors"]:
            self.problem(page, f"links to {link}, but {target} has no such anchor.")

    def check_links(self):
        for page, content in self.pages.items():
            for link in sorted(set(content["links"])):
                self.check_link(page, link)
        # The navigation tree draws only what is open. Its data has everything.
        for script in sorted(self.site.glob("*.js")):
            text = script.read_text()
            for link in set(re.findall(r'"([\w.-]+\.html(?:#[^"]*)?)"', text)):
                self.check_link(script.name, link)
            for branch in re.findall(r'\.html(?:#[^"]*)?", "(\w+)" \]', text):
                if not (self.site / f"{branch}.js").is_file():
                    self.problem(script.name, f"a branch of the navigation tree is in {branch}.js, which is missing.")

    def markdown_pages(self):
        """The paths in the project, files in the site and titles of the Markdown pages, in their order."""
        for line in (self.site.parent / "targets.txt").read_text().splitlines():
            path, label, *title = line.split("\t")
            if title:
                yield path, "index.html" if path == "README.md" else f"{label}.html", title[0]

    def check_order(self):
        self.open("index.html")
        items = WebDriverWait(self.browser, TIMEOUT).until(
            expected_conditions.presence_of_all_elements_located((By.CSS_SELECTOR, "#nav-tree .label a")))
        listed = [item.get_attribute("textContent") for item in items]
        titles = [title for _, _, title in self.markdown_pages()]
        if listed[: len(titles)] != titles:
            self.problem("index.html", f"the navigation tree must begin with {titles}, but it has {listed}.")

    def check_code(self):
        for path, page, _ in self.markdown_pages():
            blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (self.root / path).read_text(), re.MULTILINE | re.DOTALL)
            drawn = self.pages[page]["code"]
            if len(blocks) != len(drawn):
                self.problem(page, f"{path} has {len(blocks)} blocks of code, but the page has {len(drawn)}.")
                continue
            for (language, code), block in zip(blocks, drawn):
                first = code.split("\n", 1)[0]
                lines = [line.rstrip() for line in block["text"].replace("\xa0", " ").rstrip().split("\n")]
                if lines != [line.rstrip() for line in code.rstrip().split("\n")]:
                    self.problem(page, f"the code that begins with '{first}' differs from {path}: {block['text']}")
                if language in HIGHLIGHTED and block["spans"] == 0:
                    self.problem(page, f"the {language} code that begins with '{first}' is not highlighted.")

    def check_narrow_windows(self):
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", NARROW)
        for _, page, _ in self.markdown_pages():
            self.open(page)
            width, room = self.browser.execute_script(
                "const content = document.getElementById('doc-content');"
                "return [content.scrollWidth, content.clientWidth];")
            if width > room or room > NARROW["width"]:
                self.problem(page, f"its text is {width} pixels wide, in a window of {NARROW['width']} pixels.")
        self.open("index.html")
        tree = self.browser.find_element(By.ID, "side-nav")
        if tree.is_displayed():
            self.problem("index.html", "in a narrow window, the navigation tree must be closed at first.")
        self.browser.find_element(By.CSS_SELECTOR, "#menu-bar button").click()
        try:
            WebDriverWait(self.browser, TIMEOUT).until(expected_conditions.visibility_of(tree))
        except TimeoutException:
            self.problem("index.html", "in a narrow window, the menu's button does not open the navigation tree.")
        self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def wait_for_result(self, kind):
        """The first link of this kind among the search results that are shown, or None."""
        def shown(browser):
            browser.switch_to.default_content()
            for frame in browser.find_elements(By.CSS_SELECTOR, "iframe#MSearchResults"):  # newer versions have none
                browser.switch_to.frame(frame)
            links = browser.find_elements(By.CSS_SELECTOR, f".SRResult a.{kind}")
            return next((link for link in links if link.is_displayed()), None)

        try:
            return WebDriverWait(self.browser, TIMEOUT, ignored_exceptions=[WebDriverException]).until(shown)
        except TimeoutException:
            return None

    def check_search(self, text):
        self.open("index.html")
        self.browser.get_log("browser")  # read_pages() has reported the errors of this page
        field = self.browser.find_element(By.ID, "MSearchField")
        field.click()
        field.send_keys(text)
        result = self.wait_for_result("SRSymbol")
        if result is None:
            self.problem("index.html", f"a search for {text} has no results.")
            return
        if not result.text.lower().startswith(text.lower()):
            self.problem("index.html", f"the first result of a search for {text} is '{result.text}'.")
        # The link of a name that is in several places opens a list of these, which are links of their own.
        has_list = result.get_attribute("href").startswith("javascript:")
        result.click()
        if has_list:
            self.wait_for_result("SRScope").click()
        self.browser.switch_to.default_content()
        try:
            WebDriverWait(self.browser, TIMEOUT).until(lambda browser: not browser.current_url.endswith("index.html"))
        except TimeoutException:
            self.problem("index.html", f"the first result of a search for {text} opens no page.")
            return
        page = urllib.parse.urlsplit(self.browser.current_url)
        opened = os.path.relpath(urllib.parse.unquote(page.path), self.site)
        title = self.browser.find_element(By.CSS_SELECTOR, "div.header .title").text
        if text.lower() not in title.lower():
            self.problem(opened, f"the first result of a search for {text} opens this page, whose title is '{title}'.")
        self.report_errors_of_scripts(opened)


def start_browser():
    driver = shutil.which("chromedriver")
    if driver is None:
        sys.exit("check_site: expected chromedriver in PATH, but it is missing. "
                 "As root, run: apt-get install chromium chromium-driver")
    options = Options()
    options.add_argument("--headless=new")
    options.add_argument("--window-size=1400,900")
    options.add_argument("--disable-dev-shm-usage")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium does not start for root with it
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=pathlib.Path, help="the folder that has index.html")
    arguments = parser.parse_args()
    if not (arguments.site / "index.html").is_file():
        parser.error(f"expected the folder of the site, but '{arguments.site}' has no index.html. Run ./run docs first.")

    browser = start_browser()
    try:
        checker = Checker(arguments.site.resolve(), pathlib.Path(__file__).resolve().parents[2], browser)
        checker.read_pages()
        checker.check_links()
        checker.check_order()
        checker.check_code()
        checker.check_narrow_windows()
        for text in SEARCHES:
            checker.check_search(text)
    finally:
        browser.quit()

    for link in sorted(checker.external):
        print(f"not followed: {html.unescape(link)} ({checker.external[link]} pages)")
    for problem in checker.problems:
        print(problem, file=sys.stderr)
    links = sum(len(set(content["links"])) for content in checker.pages.values())
    pictures = sum(len(content["pictures"]) for content in checker.pages.values())
    print(f"{len(checker.pages)} pages, {links} links, {pictures} pictures: {len(checker.problems)} problems")
    return 1 if checker.problems else 0


if __name__ == "__main__":
    sys.exit(main())
